"""Merging layers in the background, so that a fresh slot never has to apply thousands of them.

The driver decides which layers are merged, and when (:mod:`clonos.nodes.layers`).

Merging takes processor time, and no task waits for it. So it is not done in the driver's loop but
by a separate process of low priority (``python -m clonos.cluster.compaction``). Orders and answers
are lines of JSON. The first line says where the layers are: a URI may contain keys, which everybody
on the machine could read on a command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from typing import Any

import clonos.columns.batches  # noqa: F401 - registers batches, which layers of loops have
from clonos.core.codec import CODEC
from clonos.core.content import Content
from clonos.core.layer import merge_layers, merged_path
from clonos.core.levels import LayerRef
from clonos.errors import ClonosError
from clonos.state.deltas import merge_into
from clonos.storage.files import Durability
from clonos.storage.layers import LayerStore, get_layers, put_whole
from clonos.storage.opened import ScratchFile


def merge_on_disk(deltas: Sequence[bytes | Content], *, is_base: bool) -> Content:
    """Like :func:`~clonos.state.deltas.merge_deltas`, but values by key need not fit into
    memory."""
    return merge_into(ScratchFile(), deltas, is_base=is_base)


def merge(
    store: LayerStore,
    chosen: Sequence[LayerRef],
    *,
    is_base: bool,
    term: int,
    deltas: Callable[..., bytes | Content] = merge_on_disk,
) -> LayerRef:
    """Store the layer that :func:`~clonos.core.layer.merge_layers` makes of those chosen."""
    merged = merge_layers(get_layers(store, chosen), deltas, is_base=is_base)
    return put_whole(store, merged, merged_path(chosen, term))


class Compactor:
    """The driver's end of the merging process. Its methods may block; for one thread at a time.

    Parameters
    ----------
    niceness
        Of the process: how much it gives way to others.

    Examples
    --------
    >>> compactor = Compactor("layers", "process", term=1)
    >>> compactor.merge(chain, chosen)  # doctest: +SKIP
    >>> compactor.close()
    """

    def __init__(self, uri: str, durability: Durability, term: int, niceness: int = 0) -> None:
        self._store = json.dumps([uri, durability])
        self._term, self._niceness = term, niceness
        self._process: subprocess.Popen[str] | None = None

    def merge(self, chain: Sequence[LayerRef], chosen: Sequence[LayerRef]) -> LayerRef:
        """See :func:`merge`.

        Raises
        ------
        ClonosError
            It cannot be done: a layer is unreadable, or the process has died.
        """
        layers = [_pack(ref) for ref in chosen]
        order = {"is_base": chosen[0] == chain[0], "layers": layers, "term": self._term}
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        answer = ""
        with contextlib.suppress(OSError, ValueError):
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if not answer:
            self.close()
            raise CompactorDied("the process that merges layers has died")
        said = json.loads(answer)
        if "error" in said:
            raise ClonosError(said["error"])
        return _unpack(said["merged"])

    def _start(self) -> subprocess.Popen[str]:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self._niceness)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            text=True,
            start_new_session=True,  # Ctrl+C is for the driver
        )
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died already: the missing answer tells
            self._process.stdin.write(self._store + "\n")
        return self._process

    def close(self) -> None:
        """End the process, whatever it is doing: an unfinished merge does no harm."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert pipe is not None
                    pipe.close()


class CompactorDied(ClonosError):
    """The merging process is gone; the next merge starts another one."""


def _pack(ref: LayerRef) -> str:
    return b64encode(CODEC.encode(ref)).decode()


def _unpack(packed: str) -> LayerRef:
    ref: LayerRef = CODEC.decode(b64decode(packed))
    return ref


def serve(orders: Any, answers: Any) -> None:
    """Merge on request, until the other end is closed."""
    first = orders.readline()
    if not first:
        return
    store = LayerStore(*json.loads(first))
    for line in orders:
        order = json.loads(line)
        try:
            chosen = [_unpack(packed) for packed in order["layers"]]
            merged = merge(store, chosen, is_base=order["is_base"], term=order["term"])
            answer = {"merged": _pack(merged)}
        except Exception as error:  # noqa: BLE001 - told to the driver
            answer = {"error": f"merging layers failed: {type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    os.nice(int(sys.argv[1]))
    serve(sys.stdin, sys.stdout)
