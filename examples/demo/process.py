"""Server processes of the demo: started, found by their port, and gone when their parent is."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from clonos.errors import ClonosError

LOOPBACK: Final = "127.0.0.1"
_PR_SET_PDEATHSIG: Final = 1
_STOP_SECONDS: Final = 3.0


class ServerFailed(ClonosError):
    """A server process of the demo did not start."""


def environment() -> dict[str, str]:
    """Ours, for a process that imports the examples, wherever it runs."""
    home = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [home, *(path for path in known if path not in {"", home})]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def die_with_parent() -> None:
    """Let the kernel end this process when the thread that started it ends, however it ends."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died in between
        os._exit(1)


def announce(port: int) -> None:
    """Tell the parent where we listen."""
    print(json.dumps({"port": port}), flush=True)


class ServerProcess:
    """A running server; stops it at the end of a ``with`` block.

    The server dies with the *thread* that made this object: make it in the main thread.

    Parameters
    ----------
    module
        Run with ``python -m``; announces its port.
    arguments
        Of its command line.

    Examples
    --------
    >>> import tempfile
    >>> with ServerProcess("examples.demo.service", ["--journal", tempfile.mktemp()]) as server:
    ...     server.url.startswith("http://127.0.0.1:")
    True
    """

    def __init__(self, module: str, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=environment(),
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            self.port = int(json.loads(line)["port"])
        except (ValueError, KeyError, TypeError) as error:
            self.stop()
            raise ServerFailed(
                f"{module} ended with code {self._process.returncode} before it listened",
                remedy="see what it wrote to standard error",
            ) from error

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """End the server; returns when it is gone."""
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
