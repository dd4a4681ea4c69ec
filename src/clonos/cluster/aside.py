"""Processes beside the driver, for work that would disturb the job or could end the driver's
process.

As a rule such a process has low priority. It has the hash seed of the slots, and the functions of
the job as Spark would ship them. It writes its results to its standard output, and ends with the
driver: by itself, or, if it hangs, a few seconds later.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final

from pyspark import cloudpickle  # as Spark ships functions

from clonos.errors import AsideFailed, ClonosError
from clonos.nodes.versions import HASH_SEED
from clonos.storage.files import in_this_process

PRIORITY: Final = 10
"""The niceness of such a process, so that driver and slots on its machine come first."""
END_S: Final = 5.0
"""Grace period for its end."""
LOOK_S: Final = 0.5
"""How often a process that is to end looks whether its driver is still there."""

_dumps: Callable[[Any], bytes] = cloudpickle.dumps


class Aside:
    """One process, which runs one function.

    Parameters
    ----------
    function
        ``module:name`` of a generator function; :meth:`said` returns what it yields. Its first
        argument is :func:`is_to_end`.
    request
        Its keyword arguments.
    hash_seed
        The hash seed of its sets; empty: any.
    priority
        Its niceness. If a user waits for the process, it should not be nice.

    Raises
    ------
    AsideFailed
        Something in the request cannot be shipped.
    """

    def __init__(
        self, function: str, request: dict[str, Any], hash_seed: str, priority: int = PRIORITY
    ) -> None:
        self._name = function
        try:
            shipped = _dumps(request)
        except Exception as error:
            raise AsideFailed(
                f"the job cannot be sent to another process: {type(error).__name__}: {error}"
            ) from error
        module, _, name = function.partition(":")
        # Its files there are deleted with it, even if it is killed: they may have rows and state.
        room = tempfile.mkdtemp(prefix="clonos-aside-")
        program = f"from {__name__} import serve; serve{module, name, priority, room, os.getpid()}"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                **({HASH_SEED: hash_seed} if hash_seed else {}),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                "TMPDIR": room,
            },
            start_new_session=True,  # Ctrl+C is for the driver
        )
        self.close = weakref.finalize(self, in_this_process(_end), self._process, room)
        """End the process, whatever it is doing."""
        self.tell(sys.path)
        self.tell(shipped)

    def tell(self, what: Any) -> None:
        """Send something more, which the process gets by :func:`told`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # reading tells that it has ended
            self._process.stdin.write(_dumps(what))
            self._process.stdin.flush()

    def ask_to_end(self) -> None:
        """Ask the process to end: its function finds :func:`is_to_end` true."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def said(self) -> Iterator[Any]:
        """The results of the process, as they come.

        Raises
        ------
        ClonosError
            The error with which the process has failed.
        AsideFailed
            The process has ended before it was done.
        """
        assert self._process.stdout is not None
        while True:
            try:
                kind, value = cloudpickle.load(self._process.stdout)
            except (EOFError, ValueError, OSError, pickle.UnpicklingError):
                code = self._process.wait()
                raise AsideFailed(f"{self._name} has ended with exit code {code}") from None
            if kind == "over":
                return
            if kind == "failed":
                raise value
            yield value

    def result(self, timeout_s: float) -> Any:
        """The last result of the process, after which it ends.

        Raises
        ------
        AsideFailed
            It takes longer than that, or ends before it is done.
        """
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            self.close()

        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            *_, last = self.said()
        except AsideFailed as error:
            if is_late.is_set():
                raise AsideFailed(f"it took longer than {timeout_s:g} s") from error
            raise
        finally:
            timer.cancel()
            self.close()
        return last


def _end(process: subprocess.Popen[bytes], room: str) -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    shutil.rmtree(room, ignore_errors=True)


# --- in the process -------------------------------------------------------------------------------

_ended = threading.Event()
_told: SimpleQueue[Any] = SimpleQueue()
_NO_MORE: Final = object()


def is_to_end(wait_s: float = 0.0) -> bool:
    """Whether the driver wants no more, or is gone; waits up to `wait_s` for that."""
    return _ended.wait(wait_s)


def told() -> Iterator[Any]:
    """What the driver sends by :meth:`Aside.tell`, until it wants no more."""
    while (what := _told.get()) is not _NO_MORE:
        yield what


def serve(module: str, name: str, priority: int, room: str, driver: int) -> None:
    """Run a function of the process `driver`."""
    os.nice(priority)
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # functions may print
    sys.path[:] = cloudpickle.load(requests)
    shipped = cloudpickle.load(requests)

    def listen() -> None:
        with suppress(EOFError, OSError, pickle.UnpicklingError):
            while True:
                _told.put(cloudpickle.load(requests))
        _ended.set()
        _told.put(_NO_MORE)
        _end_after(driver, room)

    threading.Thread(target=listen, daemon=True).start()

    def tell(kind: str, value: Any = None) -> None:
        replies.write(_dumps((kind, value)))
        replies.flush()

    try:
        function = getattr(__import__(module, fromlist=[name]), name)
        for value in function(is_to_end, **cloudpickle.loads(shipped)):
            tell("said", value)
        tell("over")
    except BrokenPipeError:
        pass
    except ClonosError as error:
        tell("failed", error)
    except Exception as error:  # noqa: BLE001 - user code is imported and run here
        tell("failed", AsideFailed(f"{type(error).__name__}: {error}"))
    os._exit(0)  # whatever the user's threads still do


def _end_after(driver: int, room: str) -> None:
    """End this process, and delete its files, when its driver, which would do both, is gone."""
    while os.getppid() == driver:
        time.sleep(LOOK_S)
    time.sleep(END_S)
    shutil.rmtree(room, ignore_errors=True)
    os._exit(1)
