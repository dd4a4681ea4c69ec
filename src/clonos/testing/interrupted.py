"""Processes that write with a user's sink, and are interrupted at a chosen point."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, Final

from clonos.blame import in_short, is_users_file
from clonos.errors import Fenced, StoreAway
from clonos.sinks.transactions import UserStore

FENCED: Final = 3
AWAY: Final = 4
FAILED: Final = 5
"""Exit codes of a process."""

_INSTALLED: Final = tuple({sysconfig.get_paths()[kind] for kind in ("purelib", "platlib")})


class Points:
    """Counts the points that user code reaches, and does something at a chosen one.

    A point is before a line; with `calls`, it is before or after a call of something else, which
    then raises what `act` raises: what it was to do is done or not. The last point is when the
    sink has written, and has not yet said so.
    """

    def __init__(
        self, store: Any, point: int, act: Callable[[], Any], *, calls: bool = False
    ) -> None:
        self._left, self._act, self._calls = point, act, calls
        self._files, self._is_ours = _files_of(store), not isinstance(store, UserStore)
        self.has_come = False
        self._is_users = lru_cache(None)(self._looks_users)

    @contextlib.contextmanager
    def counted(self, life: Any) -> Iterator[None]:
        """Count meanwhile, in this thread, which calls that life of a sink."""
        life._transactions = _Answering(life._transactions, self._reach)  # noqa: SLF001 - ours
        if self._calls:
            sys.setprofile(self._call)
        else:
            sys.settrace(self._function)
        try:
            yield
        finally:
            sys.settrace(None)
            sys.setprofile(None)

    def _function(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if self._is_users(frame.f_code) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self._reach()
        return self._line

    def _call(self, frame: FrameType, event: str, arg: Any) -> None:
        caller = frame if event.startswith("c_") else frame.f_back
        is_by_users = caller is not None and self._is_users(caller.f_code)
        if is_by_users and (caller is frame or not self._is_users(frame.f_code)):
            self._reach()

    def _reach(self) -> None:
        if not self.has_come and not self._left:
            self.has_come = True
            self._act()
        self._left -= 1

    def _looks_users(self, code: CodeType) -> bool:
        name = code.co_filename
        if name in self._files or self._is_ours:
            return name in self._files
        is_made = name == "<string>"  # the methods of a named tuple, say
        return is_users_file(name) and not is_made and not name.startswith(_INSTALLED)


class _Answering:
    """Transactions whose `write` reaches a point when it is done."""

    def __init__(self, transactions: Any, reach: Callable[[], None]) -> None:
        self._transactions, self._reach = transactions, reach

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transactions, name)

    def write(self, *what: Any) -> None:
        self._transactions.write(*what)
        self._reach()


def _files_of(store: Any) -> set[str]:
    """The files with the functions that talk to the store, which may be a library's."""
    transactions = store.transactions
    functions: tuple[Any, ...] = (type(transactions).write,)
    if isinstance(store, UserStore):
        functions = (transactions.open_fn, transactions.last_key_fn, transactions.write_fn)
    codes = [getattr(fn, "__code__", None) for fn in functions]
    return {code.co_filename for code in codes if code is not None}


class Child:
    """A process, forked from this one, that does some work and ends.

    If it has not ended after `limit_s`, it hangs: it says where, and ends.
    """

    def __init__(self, work: Callable[[], None], limit_s: float) -> None:
        self._ended: int | None = None
        said, say = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(said)
            os._exit(_done(work, limit_s, say))
        os.close(say)
        self._said = said

    def has_stopped(self) -> bool:
        """Wait until it is stopped or has ended; returns whether it is stopped."""
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            return True
        self._ended = os.waitstatus_to_exitcode(status)
        return False

    def wake(self) -> None:
        """Let it go on, if it is stopped."""
        if self._ended is None:
            os.kill(self.pid, signal.SIGCONT)

    def waking(self, after_s: float) -> contextlib.AbstractContextManager[Any]:
        """Wake it after a while, if what is done meanwhile takes longer: it may wait for it."""
        return _within(after_s, self.wake)

    def wait(self) -> int:
        """Its exit code."""
        if self._ended is None:
            self._ended = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._ended

    def told(self) -> str:
        """The error that ended it, or where it hung."""
        said = os.read(self._said, 10_000).decode(errors="replace")
        if said.startswith("Timeout"):  # as faulthandler begins
            return f"it hangs, perhaps because it waits for a lock of its own:\n{said}"
        return said or f"ended with {self._ended}"

    def end(self) -> None:
        """It is gone."""
        if self._ended is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        os.close(self._said)


@contextlib.contextmanager
def _within(limit_s: float, act: Callable[[], Any]) -> Iterator[None]:
    """Do something if what is done meanwhile takes longer."""
    timer = threading.Timer(limit_s, act)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _done(work: Callable[[], None], limit_s: float, say: int) -> int:
    sys.unraisablehook = sys.__unraisablehook__  # pytest's keeps what it hears of, and its locks
    faulthandler.dump_traceback_later(limit_s, exit=True, file=say)
    try:
        work()
    except Fenced as error:
        return _told(FENCED, error, say)
    except StoreAway as error:
        return _told(AWAY, error, say)
    except BaseException as error:  # noqa: BLE001 - the process ends here, whatever it is
        return _told(FAILED, error, say)
    return 0


def _told(code: int, error: BaseException, say: int) -> int:
    with contextlib.suppress(OSError):
        os.write(say, in_short(error).encode()[:10_000])
    return code
