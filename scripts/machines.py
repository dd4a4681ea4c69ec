"""Print docs/machines.md: the state diagrams of the core."""

from clonos.core.diagrams import page

print(page(), end="")
