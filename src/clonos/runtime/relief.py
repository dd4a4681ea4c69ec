"""Turns a slot's node while user code runs.

User code always runs in the same thread, the loop's: SQLite and many clients demand that. The node
and its connections belong to the thread that has the *baton*, a lock. The loop gives it up only
while user code runs. A second thread, the *relief*, looks now and then. If user code takes long, it
takes the baton and turns the node, so that fences, credits and log entries are handled, until the
loop wants the baton back. The relief begins no step.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from clonos.core.step import Abandoned, Work
from clonos.nodes.events import Heard
from clonos.nodes.slot import SlotNode

LOOK_S: Final = 0.02
"""How often the relief looks while user code runs: what lasts from one look to the next is long."""


class MainTrack:
    """A :class:`~clonos.nodes.ports.Track` that does all work at once, in the loop's own thread.

    Parameters
    ----------
    ring
        Wakes the thread that sleeps on the plane.

    Attributes
    ----------
    baton
        Held by the thread that turns the node.
    is_free
        Whether no work is under way.
    steps
        Of how many steps the work was begun.
    is_used
        Set as work begins. The relief clears it when there was none for a while, and sleeps.
    is_wanted
        Whether the loop wants the baton back.
    long
        The life whose work takes long, and when the relief first saw that, by the monotonic clock;
        any thread may ask.
    turns_since_s
        When the turn under way began; None between two turns.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self.baton = threading.Lock()
        self.is_free = True
        self.is_wanted = False
        self.steps = 0
        self.is_used = threading.Event()
        self.long: tuple[int, float] | None = None
        self.turns_since_s: float | None = None
        self._life = 0
        self._ring = ring

    def run(self, life: int, work: Work) -> bool:
        self.steps += 1
        self._life = life
        self.is_free = False
        if not self.is_used.is_set():  # after the count, at which the relief looks last
            self.is_used.set()
        self.baton.release()
        try:
            work()
        except Abandoned:
            pass
        except (Exception, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            # A Rust panic or a cancelled coroutine: the step has failed, not the slot.
            raised = RuntimeError(f"{type(error).__qualname__}: {error}")
            raise raised.with_traceback(error.__traceback__) from error
        finally:
            if not self.baton.acquire(blocking=False):
                self._take_back()
            self.is_free = True
        return True

    def _take_back(self) -> None:
        self.is_wanted = True
        self._ring()
        self.baton.acquire()
        self.is_wanted = False
        self.long = None

    def takes_long(self) -> None:
        """The relief begins to turn the node, or turns it again."""
        if self.long is None:
            self.long = self._life, time.monotonic()


def serve(
    node: SlotNode,
    poll: Callable[[float], Iterable[Heard]],
    track: MainTrack,
    hang_up: Callable[[], None],
) -> None:
    """Turn a node until it is over.

    Parameters
    ----------
    poll
        Waits for events and returns them.
    hang_up
        Ends all connections of a node that cannot be turned any more: user code may go on for
        hours.
    """

    def turn(wait_s: float) -> float:
        heard = poll(wait_s)
        track.turns_since_s = time.monotonic()
        until_s = node.turn(heard)
        track.turns_since_s = None
        if node.is_over:
            node.close()  # calls of the step under way must not hold up the end
        return until_s

    relief, wait_s = Relief(track, turn, hang_up), 0.0
    relief.start()
    try:
        while not node.is_over and relief.error is None:
            wait_s = turn(wait_s)
    except Exception:
        if relief.error is None:  # else the relief's error is its cause
            raise
    finally:
        relief.stop()
        node.close()
    if relief.error is not None:
        raise relief.error


class Relief:
    """Turns the node while user code takes long.

    Parameters
    ----------
    turn
        One turn of the node: takes how long it may sleep first, returns that for the next turn.
    hang_up
        Called if a turn fails: see :func:`serve`.

    Attributes
    ----------
    error
        What a turn has raised: the loop ends with it.
    """

    def __init__(
        self, track: MainTrack, turn: Callable[[float], float], hang_up: Callable[[], None]
    ) -> None:
        self.error: BaseException | None = None
        self._track, self._turn, self._hang_up = track, turn, hang_up
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clonos-relief", daemon=True)

    def start(self) -> None:
        """The loop begins, and takes the baton."""
        self._track.baton.acquire()
        self._thread.start()

    def stop(self) -> None:
        """The loop has ended, and gives the baton up for good."""
        self._stopped.set()
        self._track.is_used.set()
        self._track.baton.release()
        self._thread.join()

    def _run(self) -> None:
        track, seen = self._track, 0
        while not self._stopped.wait(LOOK_S):
            if track.steps != seen:
                seen = track.steps
                continue
            if track.is_free:
                self._sleep(seen)
                continue
            with track.baton:
                try:
                    self._relieve(seen)
                except BaseException as error:  # noqa: BLE001 - the loop raises it
                    self.error = error
                    with contextlib.suppress(Exception):  # perhaps the connections are what fails
                        self._hang_up()
                    return

    def _sleep(self, seen: int) -> None:
        """Sleep until there is work again."""
        used = self._track.is_used
        used.clear()
        if self._track.steps == seen and not self._stopped.is_set():
            used.wait()

    def _relieve(self, step: int) -> None:
        track, wait_s = self._track, 0.0
        while not (track.is_free or track.is_wanted or track.steps != step):
            track.takes_long()
            wait_s = self._turn(wait_s)
