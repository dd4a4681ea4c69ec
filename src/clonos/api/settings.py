"""What the settings of a job may be; anything else is a `WrongType` that says what to give."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from clonos.arguments import AS_TEXT, NEARLY_URI
from clonos.columns.durations import parse_duration
from clonos.columns.sizes import parse_size
from clonos.core.history import Keep
from clonos.core.levels import AUTO, CHOICES, MEMORY, STORE
from clonos.core.plan import FULL_DEPTH
from clonos.errors import Unbounded, WrongType
from clonos.graph.logical import LogicalGraph


def keep_of(
    history: str | timedelta | None, nbytes: str | int | None, interval: str | timedelta
) -> Keep | None:
    """How much of its past a job keeps; None if it keeps nothing."""
    if history is None:
        if nbytes is not None:
            raise WrongType(
                f"history_bytes={nbytes!r} without history=",
                remedy='say how much of the past to keep: history="6 hours"',
            )
        return None
    limit = None if nbytes is None else parse_size(nbytes)
    return Keep(parse_duration(history), limit, parse_duration(interval))


MORE_ROOM: Final = "give more: the rows of a batch are handled with all of their values in memory"
SAID_RARELY: Final = (
    "give more: receivers report only every 256 KiB what they have processed, and until then it "
    "stays in memory"
)


def size_of(name: str, size: str | int, remedy: str) -> int:
    """A number of bytes, 1 MiB at least."""
    nbytes = parse_size(size)
    if nbytes < 1 << 20:
        raise WrongType(f"{name}={size!r} is less than 1 MiB", remedy=remedy)
    return nbytes


def limit_of(name: str, size: str | int | None) -> int:
    """A number of bytes, 1 MiB at least; None is 0: nothing at all."""
    return 0 if size is None else size_of(name, size, "give None if there is to be none")


def require_bounded(graph: LogicalGraph) -> None:
    """Raise `Unbounded` if a source may never end: a DataFrame has all rows."""
    for vertex in graph.vertices:
        if vertex.source is not None and not vertex.source.ends:
            raise Unbounded(
                "this source may never end, and a DataFrame has all rows",
                where=vertex.name,
                remedy="sink the stream with clonos.sinks.table(path) and read that with "
                'spark.readStream.format("clonos").load(path)',
            )


def one_of(name: str, value: str, *allowed: str) -> None:
    """Raise `WrongType` unless `value` is one of those that are allowed."""
    if value not in allowed:
        raise WrongType(f"{name}={value!r}", remedy=f"use {' or '.join(repr(a) for a in allowed)}")


def require_logs(guarantee: str, setting: str, what: str) -> None:
    """See that there are logs; `what`: how it is without them."""
    if guarantee != "exactly_once":
        raise WrongType(
            f"{setting} with guarantee={guarantee!r}",
            remedy=f"without logs {what}: use one or the other",
        )


def require_one_past(history: Any, guarantee: str, on_orphan: str) -> None:
    """See that all parts of the past that is kept fit together."""
    require_logs(guarantee, f"history={history!r}", "the past cannot be replayed")
    if on_orphan == "availability":
        raise WrongType(
            f"history={history!r} with on_orphan={on_orphan!r}",
            remedy="after a loss that is forgiven the parts of the past do not fit together: "
            "use one or the other",
        )


def require_needed(log: str, guarantee: str, on_orphan: str, history: Any) -> None:
    """See that a job which leaves out logs needs them for nothing but recoveries."""
    one_of("log", log, "everything", "needed")
    if log == "everything":
        return
    if guarantee != "exactly_once":
        what, why = f"guarantee={guarantee!r}", "it keeps no log at all"
    elif on_orphan != "consistency":
        what, why = f"on_orphan={on_orphan!r}", "tasks that go on after a loss need all logs"
    elif history is not None:
        what, why = f"history={history!r}", "the past is read from the logs of all tasks"
    else:
        return
    raise WrongType(f"log={log!r} with {what}", remedy=f"use one or the other: {why}")


def require_logs_of(guarantee: str, checkpoints: str, *, speculation: bool) -> None:
    """See that there are logs if these settings need them."""
    if checkpoints == "uncoordinated":
        what = "only marked checkpoints fit together"
        require_logs(guarantee, f"checkpoints={checkpoints!r}", what)
    if speculation:
        require_logs(
            guarantee, f"speculation={speculation!r}", "a rival would do rows again or lose them"
        )


def checkpoints_of(
    checkpoints: Literal["auto", "marked", "uncoordinated"], guarantee: str, keep: object | None
) -> Literal["marked", "uncoordinated"]:
    """How layers that fit together are found. Only marked ones do without logs, and only at their
    points can a job go back at any time."""
    if checkpoints != "auto":
        return checkpoints
    return "uncoordinated" if guarantee == "exactly_once" and keep is None else "marked"


def interval_of(value: str | timedelta) -> int | None:
    """Milliseconds between two checkpoints; None: as the engine chooses.

    Examples
    --------
    >>> interval_of("auto"), interval_of("5 seconds")
    (None, 5000)
    """
    return None if value == "auto" else parse_duration(value)


def require_level(
    level: str, standbys: int, guarantee: str, history: Any, on_orphan: str, log: str
) -> None:
    """See that state can be kept at a level."""
    one_of("persistence", level, *CHOICES)
    if level == STORE:
        return
    if level == MEMORY and not standbys:
        what, why = "standbys=0", "the state would die with its process: say standbys=1 or more"
    elif guarantee == "at_most_once":
        what, why = f"guarantee={guarantee!r}", "without checkpoints no state is kept: leave it out"
    elif history is not None:
        what, why = f"history={history!r}", "the past is read from the checkpoint directory"
    elif level == AUTO and guarantee != "exactly_once":
        what, why = f"guarantee={guarantee!r}", "to go back to the directory, tasks need logs"
    elif level == AUTO and on_orphan == "availability":
        what, why = f"on_orphan={on_orphan!r}", "after a loss, no log leads back to the directory"
    elif level == AUTO and log == "needed":
        what, why = f"log={log!r}", "to go back to the directory, all tasks need their logs"
    else:
        return
    raise WrongType(f"persistence={level!r} with {what}", remedy=why)


def depth_of(hops: Any) -> int:
    """How far logs travel."""
    return FULL_DEPTH if hops == "full" else number_of("sharing_depth", hops, 0)


def name_of(name: str, value: Any) -> str:
    """A text that is not empty."""
    if not (isinstance(value, str) and value):
        raise WrongType(f"{name}={value!r}", remedy="give a text that is not empty")
    return value


def folder_of(name: str, value: Any) -> str | None:
    """A folder or a URI, if there is one."""
    if value is None:
        return None
    if not (isinstance(value, str | Path) and str(value)):
        raise WrongType(f"{name}={value!r}", remedy="give a folder or a URI, or leave it out")
    if NEARLY_URI.match(str(value)):
        raise WrongType(f"{name}={value!r}", remedy=AS_TEXT)
    return str(value)


def local_folder_of(name: str, value: Any) -> str | None:
    """A folder on the disk of each machine, if there is one."""
    folder = folder_of(name, value)
    if folder is not None and "://" in folder:
        raise WrongType(f"{name}={value!r}", remedy="give a folder on the disk of each machine")
    return folder


def redaction_of(name: str, value: Any) -> Any:
    """What is hidden in bundles: a name, several, a function, or nothing."""
    if value is not None:
        from clonos.branch.redaction import require_redact

        require_redact(name, value)
    return value


def flag_of(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise WrongType(f"{name}={value!r}", remedy="give True or False")
    return value


def number_of(name: str, value: Any, low: int | None, high: int | None = None) -> int:
    """A whole number within limits."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or (low is not None and value < low) or (high is not None and value > high):
        limits = f" from {low}" if low is not None else ""
        limits += f" to {high}" if high is not None else ""
        raise WrongType(f"{name}={value!r}", remedy=f"give a whole number{limits}")
    return int(value)
