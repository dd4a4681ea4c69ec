"""The driver's thread: feeds the node with events until it is done, then releases everything."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final

from clonos.blame import users_lines
from clonos.cluster.setup import DriverSetup
from clonos.cluster.stages import begins
from clonos.errors import ClonosError
from clonos.nodes.events import StopAsked
from clonos.nodes.phases import Phase
from clonos.storage.watchdog import Watchdog

HANGS_S: Final = 10.0
"""User code that keeps the driver for longer than this is warned of."""
STOP_S: Final = 30.0
"""Longest time that a caller waits for a job to stop."""


class DriverLoop:
    """The loop of one job.

    Attributes
    ----------
    error
        Why the job has failed; valid when it is over.
    """

    def __init__(self, setup: DriverSetup) -> None:
        self._setup, self._node = setup, setup.node
        self.error: ClonosError | None = None
        self.over = threading.Event()
        self._may_begin = threading.Event()
        self._is_off = self._is_unfed = False
        self._watchdog = Watchdog(self._warn, HANGS_S)
        self._thread = threading.Thread(target=self._run, name="clonos-driver", daemon=True)

    def start(self) -> None:
        """Begin. If something is missing, or the caller is interrupted, this raises and releases
        everything: the caller would have no handle to stop the job."""
        begins("restoring", self._setup.compiled.name)
        try:
            # Before there is anything to release: it may be interrupted when the thread runs.
            self._thread.start()
            self._setup.begin()
            self._may_begin.set()
        except BaseException:
            if self._may_begin.is_set():
                self._setup.inbox.put(StopAsked(None))
                self.over.wait(STOP_S)
            else:
                self._call_off()
            raise

    def _call_off(self) -> None:
        self._is_off = True
        self._may_begin.set()
        self._setup.feeds.close()
        with suppress(ClonosError):
            self._setup.followers.finish()
        self._setup.close()
        self.over.set()

    def _run(self) -> None:
        self._may_begin.wait()
        if self._is_off:
            return
        try:
            self._node.start()
        except BaseException as error:  # noqa: BLE001 - the thread's end must not go unnoticed
            self._node.fail(_as_ours(error, "the driver failed"))
        self._turns()
        self.error = self._node.error
        self._finish()

    def _turns(self) -> None:
        wait_s = 0.0
        while not self._node.is_over:
            try:
                heard = self._setup.plane.poll(wait_s)
                self._watchdog.begin()
                wait_s = self._node.turn(heard)
                if self._node.phase is not Phase.RUNNING and not self._is_unfed:
                    self._unfeed()
            except BaseException as error:  # noqa: BLE001 - user code may raise SystemExit
                if self._node.error is not None:
                    break  # it cannot even end properly
                self._node.fail(_as_ours(error, "the driver failed"))
            finally:
                self._watchdog.end()

    @property
    def awaited(self) -> str:
        """What the end of the job waits for, for people."""
        lines = self._lines
        return f"these lines of your code have not returned:\n{lines}" if lines else "it is ending"

    @property
    def _lines(self) -> str:
        """Where the driver's thread is in user code, a callback say; "" if it is not there."""
        return users_lines(self._thread.ident or 0)

    def _warn(self) -> None:
        if lines := self._lines:  # else it is a disk that hangs, which the journal tells
            self._setup.warn(
                f"job {self._setup.compiled.name!r}: a function has not returned to the driver for "
                f"{self._watchdog.hangs_s:g} s, and the job waits, in these lines of your code:\n"
                f"{lines}"
            )

    def _unfeed(self) -> None:
        """The job ends: slots may leave while the queries that feed it are stopped."""
        self._is_unfed = True
        begins("leaving", self._setup.compiled.name)
        self._setup.plane.flush()
        self._setup.feeds.close()

    def _finish(self) -> None:
        """Release everything; if a part fails, still release the rest and wake the waiting user."""
        setup = self._setup
        begins("closing", setup.compiled.name)
        for act in (
            self._unfeed,
            setup.break_off,
            self._publish,
            setup.followers.finish,
            setup.close,
            self._look_back,
            self._say_so,
        ):
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - see _run
                self.error = self.error or _as_ours(error, "ending the job failed")
        self._watchdog.close()
        self.over.set()
        setup.merger.close()  # its processes may end slowly, and a successor need not wait

    def _publish(self) -> None:
        if self.error is None and self._setup.keeper.complete:
            self._setup.publish()

    def _look_back(self) -> None:
        self.error = self._setup.with_hint(self.error)

    def _say_so(self) -> None:
        self._node.tell_the_end(self.error)


def _as_ours(error: BaseException, what: str) -> ClonosError:
    if isinstance(error, ClonosError):
        return error
    ours = ClonosError(f"{what}: {type(error).__name__}: {error}")
    ours.__cause__ = error
    return ours
