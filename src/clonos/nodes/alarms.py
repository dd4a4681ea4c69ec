"""What the driver warns of because of what tasks count: each only once, or once for each outage."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Final

from clonos.core.levels import LOCAL
from clonos.core.plan import Cell, Plan
from clonos.nodes.views import Sample

TIGHT: Final = 4
"""A warning is given if a process keeps this many times as much memory as is left to it."""
ANSWERS: Final = 1_000
"""A warning is given if one conversation has had so many answers and asks again."""
AWAY_S: Final = 10
"""A warning is given if a sink's store has refused everything for so long, if a source could not be
read for so long, if a layer has waited for so long to be stored, or if a service has answered
nothing for so long."""
OUTAGES: Final = {
    "store_away_s": (
        "the store that it writes to has taken nothing for {s} s. It is tried again until it does, "
        "and no row is lost; checkpoints wait meanwhile, then sources. The log of its process has "
        "the store's words"
    ),
    "source_away_s": (
        "its source, or a part of it, could not be read for {s} s. It is tried again until it can "
        "be, and no row is lost; the rest of the job goes on. The log of its process says why"
    ),
    "layer_waits_s": (
        "{disk} has not taken its state for {s} s: is it full, slow or away? It is tried again "
        "until it does, and no row is lost; logs grow meanwhile, because no checkpoint comes "
        "about, and in the end sources wait. The log of its process has the store's words"
    ),
}
"""By counter, what is told of it."""
MISSING: Final = {
    "missed_rows": (
        "rows of its source were gone before they could be read ({n:,} so far), and the job goes "
        "on without them. Keep rows for longer than it may be behind or stand still. The log of "
        "its process says where they were"
    ),
    "shrunk_parts": (
        "its source, or a part of it, ends before what was read of it: its server has lost rows, "
        "or it was deleted and made again. Rows that come before what was read are not in the job. "
        "The log of its process says where that is"
    ),
}
"""By counter, what is told of it, once for each task."""
_MOST_ANSWERS: Final = ": most_answers"


class Alarms:
    """The warnings about one run of a job that follow from its tasks' statistics."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._names = tuple(task.name for task in plan.tasks)
        self._refused = set[int]()  # tasks about which a warning was given ...
        self._poorer = set[tuple[str, int]]()
        self._away = set[tuple[str, int]]()
        self._silent = set[tuple[str, str, int]]()  # services, each with a task
        self._tight = set[Cell]()  # ... and cells: each is in one process
        self._talkative = set[str]()  # operators

    def heard(self, sample: Sample) -> str | None:
        """The warning that follows from these statistics of a task, if any."""
        if sample.counters.get("refused_files", 0) and sample.task not in self._refused:
            self._refused.add(sample.task)
            return (
                f"{self._names[sample.task]}: its local disk takes no files; what it keeps for "
                "receivers stays in memory, and sources wait if that becomes too much. Is the disk "
                "full? SPARK_LOCAL_DIRS says where it is"
            )
        missed = self._missing(sample)
        away = self._outage(sample) or self._silence(sample)
        return missed or away or self._tightness(sample) or self._endless(sample)

    def _missing(self, sample: Sample) -> str | None:
        for counter, warning in MISSING.items():
            count, key = sample.counters.get(counter, 0), (counter, sample.task)
            if count and key not in self._poorer:
                self._poorer.add(key)
                return f"{self._names[sample.task]}: {warning.format(n=count)}"
        return None

    def _outage(self, sample: Sample) -> str | None:
        for counter, warning in OUTAGES.items():
            seconds, key = sample.counters.get(counter, 0), (counter, sample.task)
            if seconds < AWAY_S:
                self._away.discard(key)
            elif key not in self._away:
                self._away.add(key)
                is_local = self._plan.tasks[sample.task].level == LOCAL
                disk = "its local disk" if is_local else "the checkpoint directory"
                return f"{self._names[sample.task]}: {warning.format(s=seconds, disk=disk)}"
        return None

    def _silence(self, sample: Sample) -> str | None:
        """Of services that answer nothing; tasks that call the same one are told of once."""
        found = {
            (name, away.function, sample.task): away
            for name, away in sample.away.items()
            if away.seconds >= AWAY_S
        }
        self._silent -= {
            each for each in self._silent if each[-1] == sample.task and each not in found
        }
        for key, (seconds, function, error) in found.items():
            is_told = any(each[:2] == key[:2] for each in self._silent)
            self._silent.add(key)
            if is_told:
                continue
            since = datetime.fromtimestamp(sample.at_s - seconds, timezone.utc)
            return (
                f"{key[0]} in {self._names[sample.task]}: {function} has answered nothing for "
                f"{seconds} s, since {since:%Y-%m-%d %H:%M:%S} UTC; its last error was {error}. "
                "Calls are tried again as attempts= and backoff= say, then their rows have this "
                "error. Rows that wait for calls are kept, and all else goes on"
            )
        return None

    def _endless(self, sample: Sample) -> str | None:
        for counter, answers in sample.counters.items():
            operator = counter.removesuffix(_MOST_ANSWERS)
            is_new = operator != counter and operator not in self._talkative
            if is_new and answers >= ANSWERS:
                self._talkative.add(operator)
                return (
                    f"{operator} in {self._names[sample.task]}: a conversation has had {answers:,} "
                    "answers and asks again. Does it come to an end? It keeps its place among the "
                    "calls that may be open, watermarks wait for it, and each call may cost money. "
                    "Let it count its questions in its state, or give its service a budget="
                )
        return None

    def _tightness(self, sample: Sample) -> str | None:
        kept, left = (sample.counters.get(f"memory_{what}", 0) for what in ("kept", "left"))
        cell = self._plan.cell_of[sample.task]
        if kept <= TIGHT * left or cell in self._tight:
            return None
        self._tight.add(cell)
        return (
            f"{self._names[sample.task]}: its process keeps {kept / 1e6:,.0f} MB of memory, and "
            f"{left / 1e6:,.0f} MB are left to it; without any, the system kills it. Values, "
            "timers, rows by key and windows move to the disk above state_memory=; sessions, open "
            "calls and a window that fires do not. Higher parallelism helps, more memory for "
            "executors (spark.executor.memoryOverhead), or a shorter window or session"
        )
