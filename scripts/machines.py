"""Print docs/machines.md: the state diagrams."""

from clonos.nodes.diagrams import page

print(page(), end="")
