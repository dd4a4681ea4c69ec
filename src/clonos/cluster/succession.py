"""Another graph, or other functions, for a running job: new slots are in place before it pauses.

::

    the new graph is compared             a refusal changes nothing
    slots of the new graph start,         the job runs
    values by key are shared out,
    and the new slots copy them
    the job settles                       sources wait; if it takes too long, it goes on as it was
    its driver ends                       the journal's lock is free
    the switch                            one record (clonos.upgrade.switch)
    the new slots are told what to run    the job runs

The second driver is a standby driver like any other, except that it is in the same process and
knows when the first one has ended.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from queue import Empty, SimpleQueue
from secrets import randbelow
from typing import Any, Final

from clonos.cluster.aside import Aside
from clonos.cluster.loop import DriverLoop
from clonos.cluster.setup import DriverSetup
from clonos.cluster.stages import begins
from clonos.core.levels import LayerRef
from clonos.core.plan import Incarnation
from clonos.errors import CannotUpgrade, ClonosError, NotSettled, OtherJob
from clonos.graph.compile import CompiledJob
from clonos.graph.description import describe
from clonos.nodes.events import EndIsNear, RoundBegins, StopAsked
from clonos.nodes.waiting import Waiting
from clonos.upgrade.layers import require_continuable, require_droppable
from clonos.upgrade.names import StateChanges
from clonos.upgrade.prepare import LAST_ROUNDS, NOTHING, ROUNDS, Prepared
from clonos.upgrade.renamed import shape_before

LOGGER: Final = logging.getLogger("clonos")
SHARE_OUT: Final = "clonos.cluster.sharing:share_out"
_BY_NO_TASK: Final = 1 << 30
"""More lives than any task has in a term."""
QUICK_S: Final = 0.5
"""No round follows one that was as quick as this, because it would have little to do ..."""
HALF: Final = 0.5
"""... nor if more than this share of what the last one had to read is to be read again."""
HANGS_S: Final = 60.0
"""A round, or a copy in a slot, hangs if it takes so much longer than at this rate:"""
SLOWEST: Final = 1 << 20
"""bytes of state per second."""
LOOK_S: Final = 0.1
"""How often a thread that waits for the driver looks whether it has ended."""
READY_S: Final = 10.0
"""Slots of the new graph that are not there after this are not waited for: there may be no cores
for them before the old ones leave."""


class Succession:
    """The change from one driver of a job to the next, in one process.

    Parameters
    ----------
    setup, loop
        The driver that runs the job.
    settle_s
        How long the job may take to settle.
    """

    def __init__(self, setup: DriverSetup, loop: DriverLoop, settle_s: float) -> None:
        self._setup, self._loop, self._settle_s = setup, loop, settle_s
        self._goes_on = threading.Event()
        self._is_asked = False
        self._patient_until_s = time.monotonic() + READY_S
        self._copied_until_s: float | None = None  # how long copies in these slots may take
        self._so_far = NOTHING  # what the rounds have come to
        self._refusal: CannotUpgrade | None = None
        self._is_ahead = threading.Event()  # few values have changed since the newest round
        self._is_prepared = threading.Event()  # no more rounds follow
        self._stays, self._asking = False, threading.Lock()
        self._is_given_up = False
        self._aside: Aside | None = None
        self._may_pause = threading.Event()

    def prepare(self, compiled: CompiledJob, changes: StateChanges) -> None:
        """Have another process share out the present values by key while the job runs."""
        before, directory = self._setup.compiled, self._setup.directory
        self._setup.inbox.put(EndIsNear())
        begins("sharing out", self._setup.compiled.name)
        # Whether all state stays where it is.
        is_same = describe(before) == describe(compiled)
        self._stays = is_same and not self._renames_states(changes)
        if self._stays:
            self._is_ahead.set()
            self._is_prepared.set()
            return
        request = {
            "before": json.dumps(describe(before)),
            "now": json.dumps(describe(compiled)),
            "uri": directory.layers_uri,
            "durability": self._setup.durability,
            # Of the next driver's term, so that this one does not take it for litter.
            "maker": Incarnation(self._setup.keeper.term + 1, _BY_NO_TASK + randbelow(_BY_NO_TASK)),
            "drop_state": tuple(changes.drop_state),
            "renamed": dict(changes.renamed),
        }
        thread = threading.Thread(target=self._prepare, args=(request,), daemon=True)
        thread.start()

    def _renames_states(self, changes: StateChanges) -> bool:
        version = self._setup.keeper.version
        return self._setup.directory.is_to_rename(changes.renamed, version)

    def _prepare(self, request: dict[str, Any]) -> None:
        try:
            with closing(Aside(SHARE_OUT, request, "", priority=0)) as aside:
                self._aside = aside
                said = aside.said()
                self._rounds(aside, said, ROUNDS - LAST_ROUNDS)
                self._is_ahead.set()
                self._may_pause.wait()
                self._setup.inbox.put(EndIsNear())
                self._rounds(aside, said, ROUNDS)
        except CannotUpgrade as error:
            self._refusal = error
        except (ClonosError, OSError) as error:
            LOGGER.info("%s: no more is prepared: %s", self._setup.compiled.name, error)
        finally:
            self._is_ahead.set()
            self._is_prepared.set()

    def _rounds(self, aside: Aside, said: Iterator[Prepared | None], limit: int) -> None:
        """Share out what has changed, again and again, until little has, or no less than before."""
        before = math.inf
        while (layers := self._listed()) is not None:
            refs = [ref for chain in self._so_far.since(layers).values() for ref in chain]
            nbytes = sum(ref.nbytes for ref in refs)
            if nbytes > HALF * before or self._so_far.rounds >= limit:
                return
            # The layer of a round is its epoch, and below that of the switch.
            if self._so_far.rounds >= self._setup.keeper.epoch:
                return
            stage, about = f"round {self._so_far.rounds + 1}", f": {nbytes:,} B, {len(refs)} layers"
            begins(stage, self._setup.compiled.name, about)
            began_s, more = time.monotonic(), self._round(aside, said, layers)
            if more is None:
                return
            self._so_far = more
            if time.monotonic() - began_s < QUICK_S:
                return
            before = nbytes

    def _listed(self) -> dict[int, tuple[LayerRef, ...]] | None:
        """A round begins: its layers. None: the job does not change after all."""
        answers = SimpleQueue[dict[int, tuple[LayerRef, ...]]]()
        with self._asking:
            if not self._is_given_up:
                self._setup.inbox.put(RoundBegins(answers.put))
        while not (self._is_given_up or self._loop.over.is_set()):
            with suppress(Empty):
                return answers.get(timeout=LOOK_S)
        return None

    def _round(
        self, aside: Aside, said: Iterator[Prepared | None], layers: dict[int, tuple[LayerRef, ...]]
    ) -> Prepared | None:
        """One round; if it takes far too long, the process hangs, and is ended."""
        late = threading.Timer(_longest_s(layers), aside.close)
        late.daemon = True
        late.start()
        try:
            aside.tell(layers)
            return next(said, None)
        finally:
            late.cancel()

    def give_up(self) -> None:
        """The job goes on as it was."""
        with self._asking:  # else a round might begin when no more should
            self._is_given_up = True
            self._setup.inbox.put(RoundBegins(None))
        self._may_pause.set()
        if self._aside is not None:
            self._aside.close()
        if self._goes_on.is_set():  # no driver has made the switch
            chains = self.prepared.layers.values()
            with suppress(RuntimeError):  # the job has ended meanwhile
                self._setup.merger.delete([ref.path for chain in chains for ref in chain])

    @property
    def prepared(self) -> Prepared:
        """The values that were shared out."""
        return self._so_far if self._is_prepared.is_set() else NOTHING

    def require(self, compiled: CompiledJob, changes: StateChanges) -> None:
        """Check that the job can go on with another graph, as far as that does not depend on its
        state.

        Raises
        ------
        CannotUpgrade
            It cannot.
        """
        before, directory = self._setup.compiled, self._setup.directory
        if self._loop.over.is_set():
            raise self._ended()
        if directory.is_temporary:
            raise CannotUpgrade(
                "the job has no checkpoint_dir: nothing of it outlives its driver",
                where=before.name,
                remedy="start it with a checkpoint_dir",
            )
        was, becomes = before.options.checkpoint_dir, compiled.options.checkpoint_dir
        if was != becomes:
            raise CannotUpgrade(
                f"its checkpoint_dir was {was!r} and is {becomes!r}",
                where=compiled.name,
                remedy="leave it as it was",
            )
        is_same = (known := describe(before)) == describe(compiled)
        if not is_same or self._renames_states(changes):
            require_continuable(known, compiled, directory.retired(self._setup.keeper.version))
            shape = shape_before(known, compiled, changes.renamed, changes.drop_state)
            require_droppable(shape, compiled, changes.drop_state)

    def look(self, waiting: Waiting | None) -> bool:
        """Called while the next driver waits for the journal: whether the journal is free.

        Raises
        ------
        NotSettled
            The job goes on as it was.
        CannotUpgrade
            It has ended by itself, or its state cannot be shared out.
        """
        if self._loop.over.is_set():
            if self._loop.error is not None or self._setup.keeper.complete or not self._is_asked:
                raise self._ended()
            return True
        if self._refusal is not None and not self._is_asked:
            raise self._refusal
        if self._goes_on.is_set():
            raise NotSettled(
                f"the job did not settle within {self._settle_s:g} s, and goes on as it was",
                where=self._setup.compiled.name,
                remedy="try again, with a longer within=; slow calls, and timers of processing "
                "time that never end, keep a job from settling",
            )
        if waiting is not None:
            waiting.follow(self._setup.keeper.layers if self._stays else self._so_far.layers)
        if self._is_ahead.is_set() and (waiting is None or self._has_waited_for(waiting)):
            self._may_pause.set()
        if self._may_pause.is_set() and self._is_prepared.is_set() and not self._is_asked:
            self._is_asked = True
            begins("settling", self._setup.compiled.name)
            self._setup.inbox.put(StopAsked(self._settle_s, self._goes_on.set))
        return False

    def _has_waited_for(self, waiting: Waiting) -> bool:
        """Whether its slots have their copies by now, or should not be waited for."""
        if waiting.is_ready or time.monotonic() > (self._copied_until_s or self._patient_until_s):
            return True
        if self._copied_until_s is None and waiting.are_here:
            longest_s = _longest_s(self._setup.keeper.layers)
            self._copied_until_s = time.monotonic() + longest_s
        return False

    def _ended(self) -> CannotUpgrade:
        return CannotUpgrade(
            "the job has ended", where=self._setup.compiled.name, remedy="see running.wait()"
        )

    def has_stopped(self) -> bool:
        """After a failure: whether the job was stopped for the change, so that nobody runs it
        now."""
        if not self._is_asked:
            return False
        while not self._goes_on.is_set():
            if self._loop.over.wait(0.01):
                return self._loop.error is None and not self._setup.keeper.complete
        return False


@contextmanager
def after_the_switch(error: BaseException) -> Iterator[None]:
    """If the graph from before cannot be started again, say why in the error that ended the new
    one's driver."""
    try:
        yield
    except OtherJob:
        said = "the job has its new graph by now, so start that again; nothing is lost"
        if isinstance(error, ClonosError):
            error.remedy = f"{error.remedy}; {said}" if error.remedy else said
        LOGGER.exception("the job has no driver: %s", said, exc_info=error)


def _longest_s(layers: Mapping[int, Collection[LayerRef]]) -> float:
    """The longest time that reading all these layers may take."""
    return HANGS_S + sum(ref.nbytes for chain in layers.values() for ref in chain) / SLOWEST
