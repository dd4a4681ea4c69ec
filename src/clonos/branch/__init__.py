"""Branches: what changed code would have done on the past of a job.

A branch begins at a point of a job's history and runs through everything that happened since,
twice: with the job's own code, to find out what it did then, and with changed code, on the same
rows, in the same order, at the same time. Where the changed code asks the same question as the job,
the log answers. Both runs deliver into memory, and their difference is a table.

A branch leaves no trace: it never opens a sink, makes no effect, and writes only a pin to the job's
folders. The pin keeps a running job from deleting files that are being read; it is deleted when the
past has been read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from clonos.branch import kept
from clonos.branch.answers import BILL, Answers, StandIn
from clonos.branch.compare import Comparison, compare
from clonos.branch.original import ENDLESS, Original, record
from clonos.branch.tasks import BranchedTask, Made, made_of
from clonos.core.history import Point
from clonos.errors import CannotReplace, OperatorError, Unanswered
from clonos.graph.changed import changed
from clonos.graph.compile import CompiledJob
from clonos.operators.calls.budget import Budget
from clonos.options import keywords, require_known
from clonos.replay.bundle import Bundle
from clonos.replay.kept import At, find
from clonos.replay.past import Past, read

__all__ = ["BILL", "Branch", "Budget", "CannotReplace", "Comparison", "Unanswered"]

Outputs = dict[str, list[tuple[int, int, pa.RecordBatch]]]


class Branch:
    """Changed code on the past of a job. Made by :meth:`clonos.Job.branch`, which explains the
    parameters.

    Attributes
    ----------
    replaces
        The changes, for :meth:`clonos.RunningJob.adopt`.
    bill
        How the questions of the changed code were answered: see :data:`BILL`.
    calls, cost
        The number of calls made, and their cost.
    used_up_at
        The first call for which the :class:`Budget` did not suffice; empty if it sufficed.
    error
        The error that ended the job, if its past ends with a failure. The branch goes on.
    failed
        The error that ended the branch, if `keeps_errors`; output up to there is valid. Otherwise
        the error is raised.
    """

    def __init__(
        self,
        past: Past,
        replace: Mapping[str, Any] | CompiledJob,
        *,
        until: At | Point | None = None,
        calls: Literal["stub", "live"] | Budget = "stub",
        stand_in: StandIn | None = None,
        ask: Collection[Any] = (),
        reuse: Collection[Any] = (),
        cost: Callable[[Any], float] | None = None,
        in_flight: int = 0,
        keeps_errors: bool = False,
    ) -> None:
        self._job, self.replaces = past.compiled.name, replace
        self.failed: OperatorError | None = None
        with ExitStack() as undo:
            undo.callback(past.close)
            other = changed(past.compiled, replace)
            self._schemas = {name: other.schemas[c] for c, name in past.leaves.items()}
            answers = Answers((), calls, stand_in, ask, reuse, cost, in_flight)
            undo.callback(answers.close)
            original = _original(past, until, undo)
            self.error = original.error
            answers.add(original.asked)
            self._a = original.outputs
            self._b: Outputs = {}
            try:
                _run(past, other, original, answers, self._b)
            except OperatorError as error:
                if not keeps_errors:
                    raise
                self.failed = error
        self.bill = answers.bill()
        self.calls, self.cost, self.used_up_at = answers.live, answers.cost, answers.used_up_at

    @property
    def sinks(self) -> tuple[str, ...]:
        """Names of the sinks. If the past is of a single task: also its receivers."""
        return tuple(self._schemas)

    def job_rows(self, sink: str | None = None) -> pa.Table:
        """The rows that the job delivered to a sink."""
        return self._table(self._a, self._named(sink))

    def rows(self, sink: str | None = None) -> pa.Table:
        """The rows that the branch delivers to a sink, by task and in order."""
        return self._table(self._b, self._named(sink))

    def compare(self, sink: str | None = None, keys: Sequence[str] | None = None) -> Comparison:
        """The difference between the rows of the job and of the branch.

        Parameters
        ----------
        sink
            Its name; may be left out if there is only one.
        keys
            Columns by which a row of the branch is matched with one of the job. By default, rows
            match only if they are equal in all columns.
        """
        name = self._named(sink)
        return compare(name, self.job_rows(name), self.rows(name), keys)

    def _named(self, sink: str | None) -> str:
        if sink is None and len(self.sinks) == 1:
            return self.sinks[0]
        if sink not in self.sinks:
            what = "several sinks" if sink is None else f"no sink {sink!r}"
            raise CannotReplace(
                f"the job has {what}",
                where=self._job,
                remedy=f"name one of {', '.join(self.sinks)}",
            )
        return sink

    def _table(self, outputs: Outputs, sink: str) -> pa.Table:
        schema = self._schemas[sink]
        batches = [b for _, _, b in sorted(outputs.get(sink, ()), key=lambda one: one[0])]
        return pa.Table.from_batches(batches, schema if not batches else batches[0].schema)

    def __str__(self) -> str:
        """A summary of the differences, the answers and their cost."""
        lines = []
        for sink in self.sinks:
            difference = self.compare(sink)
            lines.append(
                f"{sink}: {difference.count('only_a')} of the job's {difference.rows_a} rows are "
                f"missing, {difference.count('only_b')} of the branch's {difference.rows_b} are new"
            )
        lines += [
            "{operator}, {function}: {matched} answers from the log, {reused} reused, {stubbed} "
            "stubbed, {live} calls made, {ms} ms, cost {cost:.2f}".format(**line)
            for line in self.bill.to_pylist()
        ]
        if self.used_up_at:
            lines.append(f"the budget was used up at {self.used_up_at}; the stand-in took over")
        return "\n".join(lines)


def branch(
    job: Any,
    *,
    at: At,
    until: At | None = None,
    replace: Mapping[str, Any] | Any,
    checkpoint_dir: str | None = None,
    journal: str | Path | None = None,
    **how: Any,
) -> Branch:
    """See :meth:`clonos.Job.branch`."""
    require_known(how, dict.fromkeys([*keywords(branch), *keywords(Branch)]), "job.branch")
    changes = replace if isinstance(replace, Mapping) else replace.compile()
    past = read(job.compile(), checkpoint_dir, journal, at)
    found = Branch(past, changes, until=until, **how)
    found.replaces = replace
    return found


def _original(past: Past, until: At | Point | None, undo: ExitStack) -> Original:
    """What happened: read from a bundle, or found out by running the job's own code again."""
    bundle = past.held if isinstance(past.held, Bundle) else None
    if bundle is None or (until is None and not bundle.has_original):
        folder = tempfile.TemporaryDirectory(prefix="clonos-branch-")
        into = Path(undo.enter_context(folder))
        if until is None:
            return record(past, None, into)
        end = end_of(past, until)
        return record(replace(past, end=end), end.positions, into)
    if until is not None:
        raise CannotReplace(
            "a bundle ends where it was made to end",
            where=bundle.path,
            remedy="leave out until=",
        )
    with bundle.reading():
        return kept.get(bundle.folder)


def end_of(past: Past, until: At | Point) -> Point:
    """The point where a branch, or a bundle, ends.

    Raises
    ------
    CannotReplace
        The end is before the beginning.
    NothingToReplay
        There is no such point.
    """
    end = until if isinstance(until, Point) else find(past.keeper.history, until)
    if any(end.positions[task] < begin for task, begin in past.keeper.positions.items()):
        raise CannotReplace(
            f"point {end.number}, where it is to end, is before the point where it begins",
            where=past.compiled.name,
            remedy="give a later until=, or an earlier at=; clonos history DIR lists the points",
        )
    return end


def _run(
    past: Past, compiled: CompiledJob, original: Original, answers: Answers, outputs: Outputs
) -> None:
    plan = compiled.plan
    tasks: dict[int, BranchedTask] = {}
    leaves = past.leaves

    def put(channel: int, made: Made) -> None:
        spec = plan.channels[channel]
        if channel in leaves:
            if made.batch is not None:
                output = spec.sender, made.step, made.batch.payload
                outputs.setdefault(leaves[channel], []).append(output)
        elif spec.receiver in tasks and made.step > original.begins.get(channel, 0):
            tasks[spec.receiver].take(channel, made)  # else the initial state includes it

    begin_ms = _begin_ms(original)
    for task in past.tasks:
        number, code = task.id, compiled.codes[task.id]
        tasks[number] = BranchedTask(
            plan,
            code,
            code.program(past.lineage, f"{past.run}/branch"),
            past.layers(number),
            begin_ms,
            original.rows[number].read(),
            answers,
            put,
        )
    for channel, items in past.items.items():
        sender = plan.channels[channel].sender
        for item in items:
            if (sent := made_of(item, item.dep[sender].position)) is not None:
                tasks[plan.channels[channel].receiver].take(channel, sent)
    notes = {number: iter(of_task) for number, of_task in original.notes.items()}
    for number in original.order:
        tasks[number].step(next(notes[number]))
    ends = {channel.id: original.ends.get(channel.id, ENDLESS) for channel in plan.channels}
    for one in tasks.values():  # from the sources to the sinks
        one.drain(ends)


def _begin_ms(original: Original) -> int:
    """The first reading of any clock."""
    known = (note.clock_ms for notes in original.notes.values() for note in notes if note.clock_ms)
    return min(known, default=0)
