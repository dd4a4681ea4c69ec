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
from contextlib import closing, suppress
from secrets import randbelow
from typing import Any, Final

from clonos.cluster.aside import Aside
from clonos.cluster.loop import DriverLoop
from clonos.cluster.setup import DriverSetup
from clonos.cluster.stages import begins
from clonos.core.plan import Incarnation
from clonos.errors import CannotUpgrade, ClonosError, NotSettled
from clonos.graph.compile import CompiledJob
from clonos.graph.description import describe
from clonos.nodes.events import EndIsNear, StopAsked
from clonos.nodes.waiting import Waiting
from clonos.upgrade.layers import require_continuable, require_droppable
from clonos.upgrade.prepare import NOTHING, ROUNDS, Prepared
from clonos.upgrade.renamed import shape_before

LOGGER: Final = logging.getLogger("clonos")
SHARE_OUT: Final = "clonos.cluster.sharing:share_out"
_BY_NO_TASK: Final = 1 << 30
"""More lives than any task has in a term."""
PREPARED_S: Final = 60.0
"""After this time, only the last round of sharing out values begins ..."""
QUICK_S: Final = 0.5
"""... as after a round that was as quick as this, because the next would have little to do ..."""
HALF: Final = 0.5
"""... or one that took more than this share of the time of the round before."""
SLOWEST: Final = 1 << 20
"""Bytes of state per second. A round that takes `PREPARED_S` longer than at this rate hangs."""
READY_S: Final = 10.0
"""The job pauses after this at the latest, even without slots of the new graph: there may be no
cores for them before the old ones leave."""


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
        self._so_far = NOTHING  # what the rounds have come to
        self._is_prepared = threading.Event()  # no more rounds follow
        self._stays = False
        self._is_given_up = False
        self._aside: Aside | None = None
        self._may_pause = threading.Event()

    def prepare(
        self, compiled: CompiledJob, drop_state: Collection[str], renamed: Mapping[str, str]
    ) -> None:
        """Have another process share out the present values by key while the job runs."""
        before, directory = self._setup.compiled, self._setup.directory
        self._setup.inbox.put(EndIsNear())
        begins("sharing out", self._setup.compiled.name)
        self._stays = describe(before) == describe(compiled)  # state does, where it is
        if self._stays:
            self._is_prepared.set()
            return
        self._setup.merger.may_go_on.clear()  # before the layers are listed
        request = {
            "before": json.dumps(describe(before)),
            "now": json.dumps(describe(compiled)),
            "uri": directory.layers_uri,
            "durability": self._setup.durability,
            # Of the next driver's term, so that this one does not take it for litter.
            "maker": Incarnation(self._setup.keeper.term + 1, _BY_NO_TASK + randbelow(_BY_NO_TASK)),
            "drop_state": tuple(drop_state),
            "renamed": dict(renamed),
        }
        thread = threading.Thread(target=self._prepare, args=(request,), daemon=True)
        thread.start()

    def _prepare(self, request: dict[str, Any]) -> None:
        try:
            with closing(Aside(SHARE_OUT, request, "", priority=0)) as aside:
                self._aside = aside
                for more in self._rounds(aside):
                    self._so_far = more or self._so_far
        except (ClonosError, OSError) as error:
            LOGGER.info("%s: no more is prepared: %s", self._setup.compiled.name, error)
        finally:
            self._is_prepared.set()

    def _rounds(self, aside: Aside) -> Iterator[Prepared | None]:
        more: Prepared | None = None
        said, before_s, until_s = aside.said(), math.inf, time.monotonic() + PREPARED_S
        # The layer of a round is its epoch: even that of the last is below that of the switch.
        for _ in range(min(ROUNDS, self._setup.keeper.epoch - 1)):
            if self._is_given_up:
                return
            began_s = time.monotonic()
            more = self._round(aside, said)
            yield more
            now_s = time.monotonic()
            took_s = now_s - began_s
            is_slow = took_s > HALF * before_s  # values change as fast as they are written
            if more is None or took_s < QUICK_S or is_slow or now_s > until_s:
                break
            before_s = took_s
        self._may_pause.wait()
        self._setup.inbox.put(EndIsNear())
        if more is not None and not self._is_given_up:  # what has changed since the round before
            yield self._round(aside, said)

    def _round(self, aside: Aside, said: Iterator[Prepared | None]) -> Prepared | None:
        """One round; if it takes far too long, the process hangs, and is ended."""
        layers = dict(self._setup.keeper.layers)
        nbytes = sum(ref.nbytes for chain in layers.values() for ref in chain)
        late = threading.Timer(PREPARED_S + nbytes / SLOWEST, aside.close)
        late.daemon = True
        late.start()
        try:
            aside.tell(layers)
            return next(said, None)
        finally:
            late.cancel()

    def give_up(self) -> None:
        """The job goes on as it was."""
        self._is_given_up = True
        self._setup.merger.may_go_on.set()
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

    def require(
        self, compiled: CompiledJob, drop_state: Collection[str], renamed: Mapping[str, str]
    ) -> None:
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
        if (known := describe(before)) != describe(compiled):
            require_continuable(known, compiled, directory.retired)
            shape = shape_before(known, compiled, renamed, drop_state)
            require_droppable(shape, compiled, drop_state)

    def look(self, waiting: Waiting | None) -> bool:
        """Called while the next driver waits for the journal: whether the journal is free.

        Raises
        ------
        NotSettled
            The job goes on as it was.
        CannotUpgrade
            It has ended by itself.
        """
        if self._loop.over.is_set():
            if self._loop.error is not None or self._setup.keeper.complete or not self._is_asked:
                raise self._ended()
            return True
        if self._goes_on.is_set():
            raise NotSettled(
                f"the job did not settle within {self._settle_s:g} s, and goes on as it was",
                where=self._setup.compiled.name,
                remedy="try again, with a longer within=; slow calls, and timers of processing "
                "time that never end, keep a job from settling",
            )
        if waiting is not None:
            waiting.follow(self._setup.keeper.layers if self._stays else self._so_far.layers)
        if waiting is None or waiting.is_ready or time.monotonic() > self._patient_until_s:
            self._may_pause.set()
        if self._may_pause.is_set() and self._is_prepared.is_set() and not self._is_asked:
            self._is_asked = True
            begins("settling", self._setup.compiled.name)
            self._setup.inbox.put(StopAsked(self._settle_s, self._goes_on.set))
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
