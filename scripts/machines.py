"""Print docs/machines.md: the state diagrams of core and nodes."""

from clonos.nodes.diagrams import page

print(page(), end="")
