"""Threads for calls of plain functions: an attempt that was given up keeps its thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from clonos.blame import in_short, users_lines, your_code
from clonos.runtime.effects import by_engine

THREADS_MAX: Final = 128
"""Per operator and slot."""


class CallThreads:
    """The threads for one operator's calls; used only in the event loop of the calls."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, f"clonos-call-{name}")
        self._free = THREADS_MAX
        self._hung = 0  # functions that were given up and have not returned
        self._changed = asyncio.Event()
        self._inside: dict[asyncio.Task[Any] | None, list[int]] = {}  # by who waits: the thread

    async def place(self) -> None:
        """Wait for a thread; :meth:`run` takes it.

        Raises
        ------
        RuntimeError
            All of them hang in attempts that were given up.
        """
        while not self._free:
            if self._hung >= THREADS_MAX:
                raise RuntimeError(f"all {THREADS_MAX} threads hang in calls that had no answer")
            self._changed.clear()
            await self._changed.wait()
        self._free -= 1

    def leave(self) -> None:
        """Give a place back that :meth:`run` does not take."""
        self._free += 1
        self._changed.set()

    async def run(
        self,
        fn: Callable[..., Any],
        arguments: Callable[[], Sequence[Any]],
        key: str = "",
        late: MutableMapping[str, Future[Any]] | None = None,
    ) -> Any:
        """Call a function in a thread.

        Parameters
        ----------
        key, late
            If the call is given up and goes on, it is put into `late` under this key.

        Raises
        ------
        CancelledError
            Nobody waits for it any more. If it goes on, ``trace`` has the lines where it is.
        """
        loop, task, threads = asyncio.get_running_loop(), asyncio.current_task(), list[int]()
        try:
            given = arguments()
            running = self._pool.submit(_call, fn, given, threads)
        except BaseException:
            self.leave()
            raise
        given_up = False

        def returned() -> None:
            self._free += 1
            self._hung -= given_up
            self._changed.set()

        def tell(_: Future[Any]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(returned)

        running.add_done_callback(tell)
        self._inside[task] = threads
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError as error:
            if not running.done():
                given_up = True
                error.trace = your_code("goes on", self.lines(task))  # type: ignore[attr-defined]
                if late is not None:
                    late[key] = running
                self._hung += 1
                self._changed.set()
            raise
        finally:
            del self._inside[task]
            del running, task  # they have the error, whose traceback refers to this frame: a cycle

    def lines(self, task: asyncio.Task[Any] | None) -> str:
        """Where the thread that this task waits for is in the user's code; "" if in none."""
        return "".join(map(users_lines, self._inside.get(task, ())))

    def close(self) -> None:
        """No call begins any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _call(fn: Callable[..., Any], arguments: Sequence[Any], threads: list[int]) -> Any:
    threads.append(threading.get_ident())
    try:
        return fn(*arguments)
    except StopIteration as error:  # no future may have it
        raise RuntimeError("StopIteration") from error
    except Exception:
        raise
    except BaseException as error:
        raise by_engine(RuntimeError(in_short(error))) from error
