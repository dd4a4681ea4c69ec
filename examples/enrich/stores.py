"""A Redis and a PostgreSQL server of our own, on ports that are free, gone when we are done."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.demo.process import LOOPBACK


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """The URL of a server that keeps nothing."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise SystemExit("redis-server is not installed here (Debian's package: redis-server)")
    port = _free_port()
    command = [binary, "--port", str(port), "--bind", LOOPBACK, "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        if not any("Ready to accept connections" in line for line in server.stdout):
            raise SystemExit("redis-server does not start")
        try:
            yield f"redis://{LOOPBACK}:{port}"
        finally:
            server.terminate()
            server.stdout.read()


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """The DSN of a server with an empty database."""
    found = [*Path("/usr/lib/postgresql").glob("*/bin/initdb"), shutil.which("initdb")]
    binaries = [Path(path).resolve().parent for path in found if path is not None]
    if not binaries:
        raise SystemExit("PostgreSQL is not installed here (Debian's package: postgresql)")
    folder.mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    port, data = _free_port(), f"{folder}/data"
    _run([f"{binaries[0]}/initdb", "-D", data, "-A", "trust", "-U", "postgres", "-N"])
    control = [f"{binaries[0]}/pg_ctl", "-D", data, "-l", f"{folder}/log", "-w"]
    options = f"-p {port} -k {folder} -c listen_addresses={LOOPBACK}"
    _run([*control, "-o", options, "start"])
    try:
        yield f"postgresql://postgres@{LOOPBACK}:{port}/postgres"
    finally:
        _run([*control, "-m", "immediate", "stop"])


def _run(command: list[str]) -> None:
    # PostgreSQL does not run as root.
    prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    subprocess.run([*prefix, *command], check=True, capture_output=True, cwd="/")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        return int(free.getsockname()[1])
