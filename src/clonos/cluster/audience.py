"""Observers of a job: listeners, warnings, and what tests and benchmarks read."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from clonos.cluster.feeds import Feeds
from clonos.cluster.listener import Listener
from clonos.core import notes
from clonos.core.history import Chains
from clonos.errors import masked
from clonos.nodes.views import (
    DriverView,
    JobEvent,
    JobProgress,
    JobStarted,
    JobTerminated,
    LevelChanged,
    News,
    Recovery,
    Sample,
)

_LOGGER: Final = logging.getLogger("clonos")
_T = TypeVar("_T")

EVENTS_MAX: Final = 1000
"""Events queued per listener; a slow one misses the oldest."""
WARNINGS_MAX: Final = 1000
"""A job may run for years beside a store that comes and goes; older ones are only in the log."""

_METHODS: Final[dict[type[Any], str]] = {
    JobStarted: "on_started",
    JobProgress: "on_progress",
    Recovery: "on_recovery",
    LevelChanged: "on_level",
    JobTerminated: "on_terminated",
}


class Post:
    """Passes events to one listener, in its own thread; nobody waits for it.

    Parameters
    ----------
    warn
        Called once if the listener raises, and once if it is too slow.
    """

    def __init__(self, listener: Listener, warn: Callable[[str], Any]) -> None:
        self.listener = listener
        self.lost = 0
        self._warn = warn
        self._events: deque[tuple[str, Any]] = deque()
        self._news = threading.Condition()
        self._closed = self._has_raised = False
        self._thread: threading.Thread | None = None

    def put(self, method: str, event: Any) -> None:
        """Queue a call of a listener's method."""
        with self._news:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="clonos-listener", daemon=True
                )
                self._thread.start()
            self._events.append((method, event))
            if is_full := len(self._events) > EVENTS_MAX:
                self._events.popleft()
                self.lost += 1
            self._news.notify()
        if is_full and self.lost == 1:
            self._warn(f"the listener {self._name} is too slow: it misses events")

    def close(self) -> None:
        """End after the queued events."""
        with self._news:
            self._closed = True
            self._news.notify()

    def join(self, timeout_s: float) -> None:
        """Wait until everything is delivered, up to a limit."""
        if self._thread not in {None, threading.current_thread()}:
            self._thread.join(timeout_s)

    @property
    def _name(self) -> str:
        return type(self.listener).__name__

    def _run(self) -> None:
        while True:
            with self._news:
                while not self._events:
                    if self._closed:
                        return
                    self._news.wait()
                method, event = self._events.popleft()
            try:
                getattr(self.listener, method)(event)
            except Exception as error:
                if not self._has_raised:
                    self._has_raised = True
                    _LOGGER.debug("%s.%s raised", self._name, method, exc_info=error)
                    self._warn(
                        f"the listener {self._name} raised {type(error).__name__} in {method}: "
                        f"{error} (said once)"
                    )


class Warnings:
    """Warnings, in words, without keys of URIs; any thread may add one."""

    def __init__(self) -> None:
        self.said: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def __call__(self, text: str) -> None:
        text = masked(text)
        with self._lock:
            self.said = (*self.said, text)[-WARNINGS_MAX:]
        _LOGGER.warning(text)


class Observer:
    """What tests and benchmarks observe: recoveries and floors, as of the newest view, and samples.

    Parameters
    ----------
    names
        The names of the tasks.

    Attributes
    ----------
    listeners, samplers
        Called with each event and with each sample, in the driver's loop. Of the samples only the
        newest of each task is kept: a job may run for years.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._newest: dict[int, Sample] = {}
        self.look: Callable[[], DriverView]
        self.listeners: tuple[Callable[[JobEvent], Any], ...] = ()
        self.samplers: tuple[Callable[[Sample], Any], ...] = ()

    @property
    def recoveries(self) -> tuple[Recovery, ...]:
        return self.look().recoveries

    @property
    def floors(self) -> int:
        return self.look().floor

    def follow(self, before: Observer) -> None:
        """Call what the observer before has called."""
        self.listeners, self.samplers = before.listeners, before.samplers

    def newest(self) -> list[Sample]:
        """The newest sample of each task that has sent one."""
        with self._lock:
            return list(self._newest.values())

    def sample(self, sample: Sample) -> None:
        with self._lock:
            self._newest[sample.task] = sample
        self._tell(self.samplers, sample)

    def note(self, note: notes.Note, at_s: float) -> None:
        """Tell the listeners of events."""
        name = self._names[note.task] if isinstance(note, notes.OfTask) else ""
        value, why = _told_of(note)
        self._tell(self.listeners, JobEvent(note.what, name, value, at_s, why))

    def _tell(self, listeners: Sequence[Callable[[_T], Any]], what: _T) -> None:
        for listener in listeners:
            try:
                listener(what)
            except Exception:  # a listener's mistake must not end the job
                _LOGGER.exception("a listener of the job raised at %s", what)


class JobAudience:
    """The :class:`~clonos.nodes.ports.Audience` of a job."""

    def __init__(
        self, observer: Observer, warn: Warnings, listeners: Sequence[Listener], feeds: Feeds
    ) -> None:
        self._feeds = feeds
        self.noted, self.sampled, self.warned = observer.note, observer.sample, warn
        self._posts = tuple(Post(listener, warn) for listener in listeners)

    def follow(self, before: JobAudience) -> None:
        """Take over the listeners of the audience before."""
        for post in before._posts:
            self.add(post.listener)

    def add(self, listener: Listener) -> None:
        """Add a listener, for events from now on."""
        self._posts = (*self._posts, Post(listener, self.warned))

    def remove(self, listener: Listener) -> None:
        """Remove a listener; it still gets the queued events."""
        for post in [p for p in self._posts if p.listener is listener]:
            self._posts = tuple(p for p in self._posts if p is not post)
            post.close()

    def told(self, what: News) -> None:
        for post in self._posts:
            post.put(_METHODS[type(what)], what)
        if type(what) is JobTerminated:
            for post in self._posts:
                post.close()

    def join(self, timeout_s: float) -> None:
        """Wait until listeners have heard of the end, up to a limit."""
        until = time.monotonic() + timeout_s
        for post in self._posts:
            post.join(max(0.0, until - time.monotonic()))

    def floor(self, layers: Chains, kept: Chains) -> None:
        self._feeds.after_floor(layers, kept)


def _told_of(note: notes.Note) -> tuple[int, str]:
    """The number and the reason that listeners of events are told."""
    match note:
        case (
            notes.Floor(epoch=number)
            | notes.Hard(epoch=number)
            | notes.Back(epoch=number)
            | notes.Standby(epoch=number)
            | notes.Generation(number=number)
            | notes.Fetched(length=number)
            | notes.Restored(store_bytes=number)
            | notes.Live(position=number)
            | notes.Unreadable(channel=number)
            | notes.Rival(target=number)
            | notes.Moved(target=number)
            | notes.Outside(deaths=number)
            | notes.Together(deaths=number)
        ):
            return number, ""
        case notes.Stayed(target=target, why=why):
            return target or 0, why
        case notes.Unreachable(channel=number, why=why) | notes.Call(proofs=number, call=why):
            return number, why
        case notes.Level(why=why):
            return 0, why
    return 0, ""
