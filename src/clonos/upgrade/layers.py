"""The first layers of the tasks of a new plan, made from the last layers of the former tasks.

Operators are matched by name. If an operator has as many tasks as before, each continues with the
state of its predecessor unchanged. Otherwise state is redistributed by key group, and facts are
combined by the operator's own rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any, Final

import pyarrow as pa

from clonos.core.messages import Dependency
from clonos.core.plan import HOUSE_KEEPER
from clonos.core.sealed import Layer
from clonos.errors import CannotUpgrade
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.graph.description import describe, names_of
from clonos.operators.base import Operator
from clonos.operators.make import make_operator
from clonos.operators.shares import REWOUND, Heir, Share, calls_are_open
from clonos.operators.watermark import IDLE
from clonos.state.deltas import CHAIN, Changes, Delta, Frozen
from clonos.state.kept import Kept, fact_changes, kept_of, nothing_kept
from clonos.state.renumbered import Numbered, Ranks, Renumbered
from clonos.state.runs import Run
from clonos.storage.opened import ScratchFile
from clonos.upgrade.flow import Flow, slowest
from clonos.upgrade.owners import owned, share_out
from clonos.upgrade.reads import parts_in, require_readable
from clonos.upgrade.renamed import has_a_trace, is_spooled
from clonos.upgrade.sealed import NUMBERS_APART, Sealed
from clonos.upgrade.section import gone_back
from clonos.upgrade.shape import Shape
from clonos.upgrade.states import state_names

_SAME_GRAPH: Final = "start the job as it was; or, if that state may go, add "

_NUMBERS: Final = ("asked", "came")


def require_continuable(
    before: Mapping[str, Any], compiled: CompiledJob, retired: Collection[str] = ()
) -> None:
    """Raise `CannotUpgrade` if a job cannot continue the one described, whatever its state.

    Parameters
    ----------
    retired
        Operators of earlier graphs.
    """
    now = describe(compiled)
    if before.get("leaves_gaps") or compiled.plan.leaves_gaps:
        raise CannotUpgrade(
            "with guarantee='at_most_once' nothing is kept that another graph could go on with",
            where=compiled.name,
            remedy="start the job afresh in another checkpoint_dir",
        )
    for what in ("job", "seed", "lineage", "causal_log"):
        if before[what] != now[what]:
            raise CannotUpgrade(
                f"its {what} was {before[what]!r} and is {now[what]!r}: calls, effects and random "
                "numbers would have other names",
                where=compiled.name,
                remedy="leave it as it was, or start the job afresh in another checkpoint_dir",
            )
    known = names_of(before)
    for code in compiled.codes:
        if is_spooled(code) and code.source_name in retired and code.source_name not in known:
            raise _old_rows(code.source_name)


def require_droppable(before: Shape, compiled: CompiledJob, names: Collection[Any]) -> None:
    """Raise `CannotUpgrade` unless the state of these operators, and the positions of sources in
    some of what they read, can be lost, and nothing else is."""
    sources = {code.source_name: code for code in compiled.codes if code.source is not None}
    require_readable(before, sources, names)
    for name in sorted({name for name in names if isinstance(name, str)} - before.homes.keys()):
        raise CannotUpgrade(
            f"drop_state names {name!r}, and the job had no operator of this name",
            remedy=f"it had {', '.join(before.had)}",
        )
    for code in compiled.codes:
        if is_spooled(code) and code.source_name in names:
            raise _old_rows(code.source_name)


def _old_rows(name: str) -> CannotUpgrade:
    return CannotUpgrade(
        "the checkpoint still has rows of the source that had this name: they would be read",
        where=name,
        remedy="give the source another name",
    )


class Redistribution:
    """One redistribution.

    Parameters
    ----------
    before
        The job that has settled.
    layers
        By task of that job, all its layers merged into one. Runs are not read into memory.
    compiled
        The job that is to continue.
    sealed
        The names of the new layers.
    drop_state
        Operators whose state may be lost, and positions of sources: (source, what it read).
    numbers
        By name, how many calls an operator of this name had made in an earlier graph.
    elsewhere
        Operators whose values are in other layers below these, except for changes.
    """

    def __init__(
        self,
        before: Shape,
        layers: Mapping[int, Layer],
        compiled: CompiledJob,
        sealed: Sealed,
        drop_state: Collection[Any] = (),
        numbers: Mapping[str, int] | None = None,
        elsewhere: Collection[str] = (),
    ) -> None:
        self._elsewhere = frozenset(elsewhere)
        self._asked_before = numbers or {}
        self._before, self._layers, self._sealed = before, layers, sealed
        self._compiled, self._now = compiled, Shape.of(compiled)
        self._kept = {
            task: kept_of(layer.delta, reads_runs=False) for task, layer in layers.items()
        }
        self._rename_states()
        self._files: dict[int, ScratchFile] = {}  # by new task: the runs that it takes over
        self._shared: dict[str, tuple[dict[int, Run], dict[str, int]]] = {}
        self._flow = Flow(before, layers, self._kept, self._now)
        self._dropped = frozenset(drop_state)
        # No position is used twice, because random numbers derive from task and position.
        self._position = max(layer.position for layer in layers.values())
        if sealed.discarded is not None:
            self._position = sealed.discarded.position
        self._clock_ms = max(layer.clock_ms for layer in layers.values())

    def _rename_states(self) -> None:
        for name, names in state_names(self._before).items():
            for task in self._before.homes[name]:
                place = self._before.chains[task].index(name)
                kept = names.kept(self._of(name, task), ScratchFile())
                self._kept[task] = {**self._kept[task], place: kept}
            if name not in self._elsewhere:
                names.require_found()

    def layers(self) -> dict[int, Layer]:
        """The first layer of each new task.

        Raises
        ------
        CannotUpgrade
            State would be lost or misread.
        """
        self._require_nothing_lost()
        found = {code.task.id: self._layer(code) for code in self._compiled.codes}
        for file in self._files.values():
            file.finish()
        return found

    # --- refusals -------------------------------------------------------------------------------

    def _require_nothing_lost(self) -> None:
        before, now = self._before, self._now
        require_droppable(before, self._compiled, self._dropped)
        for former, name in before.renamed.items():
            self._require_no_trace(former, name)
        for name in before.homes:
            if name in self._dropped:
                continue
            if name not in now.homes and self._has_state(name):
                raise CannotUpgrade(
                    f"the job had an operator {name!r}, which has state, and has none now",
                    where=name,
                    remedy=f"{self._other_name(name)}{_SAME_GRAPH}drop_state=[{name!r}]",
                )
            if name in now.homes and self._has_state(name):
                self._require_fitting(name)
            elif (
                name in before.sources
                and name in now.sources
                and before.sources[name] != now.sources[name]
            ):
                raise CannotUpgrade(
                    "the source of this name has ended: nothing would be read from another one",
                    where=name,
                    remedy="give the new source another name",
                )

    def _require_no_trace(self, former: str, name: str) -> None:
        """Raise `CannotUpgrade` if something outside of the job knows a renamed operator."""
        before, tasks = self._before, self._before.homes.get(name, [])
        specs = [before.plan.tasks[task] for task in tasks]
        if name in before.sinks:
            if any(self._layers[spec.id].outs[spec.outputs[-1]][0] for spec in specs):
                what = "it has put out rows, and the output of a sink has its name"
                raise has_a_trace(former, what)
        elif any(spec.has_effects for spec in specs) and self._calls_made(name):
            raise has_a_trace(
                former,
                "it has made effects, whose keys have its name: a service would take them for "
                "new ones",
            )

    def _calls_made(self, name: str) -> int:
        """How many calls an operator has made, of any kind."""
        facts = (self._of(name, task).facts for task in self._before.homes[name])
        return max((of.get(fact) or 0 for of in facts for fact in _NUMBERS), default=0)

    def _other_name(self, name: str) -> str:
        """The beginning of a remedy, if an operator that is new may be this one."""
        was, now = self._before, self._now
        for other, operation in now.operators.items():
            if other not in was.homes and operation == was.operators[name]:
                return f"if it is {other!r} now, add renamed={{{name!r}: {other!r}}}; else "
        return ""

    def _has_state(self, name: str) -> bool:
        """Whether an operator has state that would be lost, including a source's position."""
        if name in self._before.sources:
            return not all(self._layers[t].source_ended for t in self._before.homes[name])
        kept = [self._of(name, task) for task in self._before.homes[name]]
        return name in self._elsewhere or any(len(one.keys) or one.runs for one in kept)

    def _require_fitting(self, name: str) -> None:
        before, now = self._before, self._now
        was, becomes = before.operators[name], now.operators[name]
        if was[:1] == ["ProcessRows"] == becomes[:1]:  # only values by key: the rest may change
            was, becomes = was[:2], becomes[:2]
        pairs: list[tuple[str, Any, Any]] = [
            ("kind and settings", was, becomes),
            ("columns of what it keeps", before.keeps[name], now.keeps[name]),
            ("source", before.sources.get(name), now.sources.get(name)),
        ]
        for what, one, other in pairs:
            if one != other:
                raise CannotUpgrade(
                    f"its {what} have changed, and its state was made with the old ones: "
                    f"{one}, not {other}",
                    where=name,
                    remedy=f"give the changed operator another name, and {_SAME_GRAPH}"
                    f"drop_state=[{name!r}]",
                )

    # --- one task ---------------------------------------------------------------------------------

    def _of(self, name: str, task: int) -> Kept:
        """The state of an operator in a former task."""
        place = self._before.chains[task].index(name)
        return self._kept[task].get(place, nothing_kept())

    def _former(self, name: str, index: int) -> list[int]:
        """The former tasks whose state a task of an operator continues."""
        if name in self._dropped or not self._is_same_kind(name):
            return []
        return self._flow.former(name, index)

    def _predecessor(self, name: str, index: int) -> int | None:
        """The former task whose state it takes over unchanged, if there is one."""
        known = self._former(name, index)
        return self._flow.predecessor(name, index) if known else None

    def _is_same_kind(self, name: str) -> bool:
        known = self._before.operators.get(name, [None])
        return bool(known[:1] == self._now.operators[name][:1])

    def _layer(self, code: TaskCode) -> Layer:
        task, sealed = code.task, self._sealed
        names = [name for name, _ in code.operators]
        former = {t for name in names for t in self._former(name, task.index)}
        wakes = [w for t in former if (w := self._layers[t].wake_ms) is not None]
        has_ended = [self._flow.has_ended(name, task.index) for name in names]
        senders = self._now.before(names[0], task.index)
        ended = tuple(
            channel
            for channel, sender in zip(task.inputs, senders, strict=True)
            if self._flow.has_ended(*sender)
        )
        changes: list[tuple[int, Changes | Frozen]]
        changes = [(CHAIN, fact_changes(self._chain_facts(code, ended)))]
        for number, (name, _) in enumerate(code.operators):
            changes += [(number, change) for change in self._changes(code, number, name)]
        rows, cut, source_ended = self._source(code)
        if (source_ended or (ended and ended == task.inputs)) and not all(has_ended):
            self._require_same_chain(names)
        return Layer(
            task=task.id,
            incarnation=sealed.maker,
            epoch=sealed.epoch,
            position=self._position,
            ins=dict.fromkeys(task.inputs, (0, 0)),
            outs={c: self._out(code, c) for c in task.outputs},
            ended=ended,
            dep={task.id: Dependency(sealed.maker, self._position)},
            clock_ms=self._clock_ms,
            wake_ms=min(wakes, default=None),
            source_rows=rows,
            source_cut=cut,
            source_ended=source_ended,
            delta=Delta(names, changes).encoded(),
            end_is_out=all(has_ended),
            generation=sealed.generation,
        )

    def _require_same_chain(self, names: Sequence[str]) -> None:
        """Check a chain whose input has ended and whose END waits for calls: it must not change."""
        for task in self._before.homes.get(names[0], ()):
            if self._before.chains[task] != tuple(names):
                raise calls_are_open(names[0])

    def _out(self, code: TaskCode, channel: int) -> tuple[int, int]:
        """Continue the numbers of a sink's lane: the store with its mark expects the next one."""
        task, before = code.task, self._before
        is_lane = self._compiled.plan.channels[channel].receiver == HOUSE_KEEPER
        if is_lane and self._sealed.discarded is not None:
            return self._sealed.discarded.lanes[channel]
        if is_lane and task.sink in before.sinks and task.index < len(before.homes[task.sink]):
            former = before.homes[task.sink][task.index]
            return self._layers[former].outs[before.plan.tasks[former].outputs[-1]]
        return 0, 0

    def _source(self, code: TaskCode) -> tuple[int, bytes, bool]:
        """The number of rows taken, the cut after them, and whether the source has ended."""
        if code.source is None:
            return 0, b"", False
        name, index = code.source_name, code.task.index
        predecessor = self._predecessor(name, index)
        if predecessor is not None:
            mine = self._layers[predecessor]
            return mine.source_rows, self._cut(code, mine.source_cut), mine.source_ended
        former = [self._layers[task] for task in self._former(name, index)]
        if not former or all(layer.source_ended for layer in former):
            return 0, b"", bool(former)
        raise CannotUpgrade(
            f"{len(former)} tasks have read from this source, and it is not known what "
            f"{code.parallelism} tasks would have read",
            where=name,
            remedy=f"leave it as it was, job.source(..., parallelism={len(former)}), and give what "
            "follows the parallelism that you want; rebalance() shares its rows out",
        )

    def _cut(self, code: TaskCode, cut: bytes) -> bytes:
        """A cut of a source, without what it is to forget."""
        gone = parts_in(self._dropped).get(code.source_name)
        if not (cut and gone and code.source is not None and code.source.forget is not None):
            return cut
        return code.source.forget(cut, gone)

    # --- state ------------------------------------------------------------------------------------

    def _changes(self, code: TaskCode, number: int, name: str) -> Sequence[Changes | Frozen]:
        former = self._former(name, code.task.index)
        if not former:
            operator = make_operator(code.operators[number][1])
            return [fact_changes(self._numbers(name) if "asked" in operator.joins else {})]
        operator = make_operator(code.operators[number][1])
        predecessor = self._predecessor(name, code.task.index)
        if predecessor is not None:
            kept = self._of(name, predecessor)
            if "asked" in operator.joins:
                kept = self._gone_back(self._counted_on(name, kept, operator))
            return kept.changes()
        heir = Heir(code.task.index, code.parallelism)
        shares, watermark = [], self._watermark(name)
        for task in former:
            kept = self._of(name, task)
            mine = kept.chosen(owned(kept.groups, heir))
            facts = {fact: v for fact, v in mine.facts.items() if fact != "watermark"}
            shares.append(Share(facts, pa.array(mine.groups), mine.keys, mine.values, kept.runs))
        operator.adopt(shares, heir, name)
        if name not in self._shared:
            self._shared[name] = self._share_out(name, former, operator.numbered)
        runs, counts = self._shared[name]
        more = self._numbers(name) if self._is_reused(name, operator) else {}
        for fact, count in {**counts, "watermark": watermark, **more}.items():
            if count is not None:
                operator.facts.set(fact, count)
        changes = operator.changes()  # before the facts: it may change one
        return [operator.facts.changes(), changes, lambda: [runs[code.task.id]] if runs else []]

    def _share_out(
        self, name: str, former: Sequence[int], numbered: Mapping[str, Numbered]
    ) -> tuple[dict[int, Run], dict[str, int]]:
        """By new task its part of the runs of former tasks; and the facts that count the rows."""
        runs, stores = [self._of(name, task).runs for task in former], list(numbered.values())
        counts, given = dict[str, int](), [run for of_task in runs for run in of_task]
        if numbered:
            ranks = Ranks(runs, stores)
            counts = dict(zip(numbered, ranks.ends(), strict=True))
            given = [
                Renumbered(run, ranks, number, stores)
                for number, of_task in enumerate(runs)
                for run in of_task
            ]
        if not given:
            return {}, counts
        homes = self._now.homes[name]
        heirs = {
            task: partial(owned, heir=Heir(index, len(homes)))
            for index, task in enumerate(homes)
            if self._predecessor(name, index) is None
        }
        to = [(self._files.setdefault(task, ScratchFile()), owns) for task, owns in heirs.items()]
        return dict(zip(heirs, share_out(given, to, is_base=False), strict=True)), counts

    def _gone_back(self, kept: Kept) -> Kept:
        """Record a rewind, so that calls from now on get other names than discarded ones."""
        if self._sealed.discarded is None:
            return kept
        return gone_back(kept, self._sealed.generation)

    def _is_reused(self, name: str, operator: Operator) -> bool:
        """Whether an operator has got a name under which another one has made calls."""
        before = self._before
        if name not in before.renamed.values() or "asked" not in operator.joins:
            return False
        other = before.renamed.get(name)  # the operator that had the name until now
        return name in self._asked_before or (other is not None and self._calls_made(other) > 0)

    def _counted_on(self, name: str, kept: Kept, operator: Operator) -> Kept:
        """The numbers of calls go on after those that had the name before, if there are any."""
        if not self._is_reused(name, operator):
            return kept
        if len(kept.keys):
            raise calls_are_open(name)
        return kept._replace(facts={**kept.facts, **self._numbers(name)})

    def _numbers(self, name: str) -> dict[str, Any]:
        """The initial facts of an operator whose calls might get names that were used before."""
        asked = self.asked().get(name, 0)
        if not asked:
            return {}
        facts: dict[str, Any] = dict.fromkeys(_NUMBERS, asked)
        if asked >= NUMBERS_APART:
            facts[REWOUND] = [[asked, self._sealed.generation]]
        return facts

    def asked(self) -> dict[str, int]:
        """By name, how many calls operators have made, of any kind, removed ones included. A later
        operator of the same name counts on from there, so that no call's name is used twice."""
        found = dict(self._asked_before)
        for name in self._before.homes:
            if most := self._calls_made(name):
                found[name] = max(found.get(name, 0), most)
        for name, becomes in self._before.renamed.items():
            if becomes in found:
                found[name] = max(found.get(name, 0), found[becomes])
        return found

    def _watermark(self, name: str) -> int | None:
        """The newest watermark that has come to an operator whose number of tasks has changed.

        Tasks with the same senders have got the same watermarks. If some of the senders were idle,
        one task may be ahead, as any of them might have been.
        """
        former = self._before.homes[name]
        marks = [self._of(name, task).facts.get("watermark") for task in former]
        known = [mark for mark in marks if mark is not None]
        if self._before.is_shuffled(name) or len(set(marks)) == 1:
            return max(known, default=None)
        if self._has_state(name):
            raise CannotUpgrade(
                "its tasks are at different event times, and their state cannot be one",
                where=name,
                remedy="leave the parallelism of this operator as it was",
            )
        return min(known) if len(known) == len(marks) else None

    def _chain_facts(self, code: TaskCode, ended: Collection[int]) -> dict[str, Any]:
        """The facts of a new task's chain: event time and end of its inputs, and counts."""
        task = code.task
        bad = {c for other in self._compiled.codes if other.bad_records
               for c in other.bad_records.channels}  # fmt: skip
        marks = dict(zip(task.inputs, self._flow.came(task.id), strict=True))
        facts: dict[str, Any] = {f"ended {c}": True for c in ended}
        facts |= {
            f"watermark {c}": mark for c, mark in marks.items() if mark is not None and c not in bad
        }
        running = [mark for c, mark in marks.items() if c not in ended and c not in bad]
        if running and None not in running:
            slow = slowest(running)
            facts["idle"] = slow == IDLE
        known = self._head_watermark(code)
        if known is not None:
            facts["watermark"] = known
        names = [name for name, _ in code.operators]
        facts["over"] = len(
            list(takewhile(lambda name: self._flow.heard_the_end(name, task.index), names))
        )
        if task.index == 0:
            facts["traffic"] = self._traffic(names)
        return facts

    def _head_watermark(self, code: TaskCode) -> int | None:
        """The event time of the chain, which is that of its head."""
        name = code.operators[0][0]
        predecessor = self._predecessor(name, code.task.index)
        if predecessor is not None:
            mark: int | None = self._of(name, predecessor).facts.get("watermark")
            return mark
        return self._watermark(name) if self._former(name, code.task.index) else None

    def _traffic(self, names: Sequence[str]) -> list[int]:
        """Counts of batches and rows of all former tasks; the first new task continues them."""
        counts = [0] * (2 + len(names) + 1)
        for number, name in enumerate(names):
            for task in self._before.homes.get(name, ()):
                chain = self._before.chains[task]
                said = self._flow.facts(task, CHAIN).get("traffic") or [0] * (3 + len(chain))
                place = chain.index(name)
                counts[2 + number] += said[2 + place]
                if number == len(names) - 1:
                    counts[-1] += said[2 + place + 1]
                if number == place == 0:
                    counts[0] += said[0]
                if number == len(names) - 1 and place == len(chain) - 1:
                    counts[1] += said[1]
        return counts
