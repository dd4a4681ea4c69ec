"""The page of state diagrams in the documentation, made from the tables."""

from __future__ import annotations

from typing import Any

from clonos.core.blame import BLAME
from clonos.core.channels import INBOUND_ITEMS, INBOUND_LINK, OUTBOUND
from clonos.core.dial import PACE
from clonos.core.life import LIFE
from clonos.core.machine import Table
from clonos.core.markers import EPOCH
from clonos.core.moves import MOVE
from clonos.core.roster import RECOVERY
from clonos.core.seals import SEAL
from clonos.nodes.commits import JOURNAL
from clonos.nodes.phases import DRIVER
from clonos.nodes.places import PLACE
from clonos.nodes.tenure import TENURE
from clonos.transport.states import STREAM

TABLES: tuple[Table[Any, Any], ...] = (
    LIFE, RECOVERY, INBOUND_LINK, INBOUND_ITEMS, OUTBOUND, SEAL, EPOCH, PACE, BLAME, MOVE, PLACE,
    JOURNAL, DRIVER, TENURE, STREAM,
)  # fmt: skip

HEAD = """\
# State machines

Made from the tables of `clonos.core`, `clonos.nodes` and `clonos.transport` by `make machines`; a
test holds this page to them. An event that a table does not have in some state raises
`InvalidTransition`. Each machine keeps its last 32 transitions, its *story*; a `ProtocolError`
shows the stories of the machines involved.
"""


def page() -> str:
    """Return the page as Markdown."""
    sections = [
        f"## {table.name[0].upper()}{table.name[1:]}\n\n```mermaid\n{table.diagram()}\n```\n"
        for table in TABLES
    ]
    return "\n".join([HEAD, *sections])
