"""A sealed layer as bytes: what a task stores at a floor and what its standbys apply.

Layout, little-endian::

    magic "CLAY" | version u16 | bytes of header, of rows u32 | header | rows | delta | xxh3_64 u64

The header is the :class:`~clonos.core.sealed.Layer` without its delta and the rows of the items
that it carries, which stay beside it: a delta may be far larger than any message. The checksum
covers everything before it: stores and networks may hand back something else than they were given,
and a wrong state is worse than none.

A delta may be larger than memory. Its first bytes (magic ``CHECKS_ITSELF``, bytes u64) then say how
much of it the checksum covers. The rest is checked when it is read, by digests in the part that is
covered.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from xxhash import xxh3_64

from clonos.core.canonical import decode, encode
from clonos.core.codec import CODEC
from clonos.core.content import Chunks, Content, Part, chunks_of, content_of
from clonos.core.levels import STORE, LayerRef
from clonos.core.messages import Item
from clonos.core.plan import Incarnation
from clonos.core.sealed import Layer
from clonos.errors import MalformedMessage, UnreadableLayer

_MAGIC: Final = b"CLAY"
_VERSION: Final = 8
_HEAD: Final = struct.Struct("<4sHII")
_CHECKSUM: Final = struct.Struct("<Q")

CHECKS_ITSELF: Final = b"SELFCHCK"
UP_TO: Final = struct.Struct("<8sQ")
"""The beginning of a delta that is not read as a whole."""

IN_PLACE_BYTES: Final = 64 << 20
"""Slots use the state of a layer of this size where it lies: they do not merge it once more, and a
copy begins again when its first layers were merged into one of this size."""

_PATH: Final = re.compile(
    r"(\d+)/\.?((\d{12})-(\d+)-(\d+)(?:-from-(\d{12})-by-(\d+)(?:-(\d+))?)?\.layer)"
    r"(?:\.[0-9a-f]+\.tmp)?"
)
"""A layer's path, finished or not: task, name, number, life; of a merged one also the number of the
first layer in it, and the term of the driver, or the life of the task, that has merged it."""


def layer_path(task: int, epoch: int, incarnation: Incarnation) -> str:
    """Where a layer is kept. Sorted by path, a task's layers are in the order of their epochs.

    Examples
    --------
    >>> layer_path(3, 17, Incarnation(1, 2))
    '3/000000000017-1-2.layer'
    """
    return f"{task}/{epoch:012d}-{incarnation.term}-{incarnation.n}.layer"


def merged_path(chosen: Sequence[LayerRef], term: int) -> str:
    """Where a driver, in its term, puts the layer into which it merges the chosen ones.

    The name says which layers are in it, so that no other content ever gets it. Else a merge that
    came too late, and is deleted some time later, could have the name of one that counts.

    Examples
    --------
    >>> refs = [LayerRef(3, e, Incarnation(1, 2), 0, "", 0, 0) for e in (16, 17)]
    >>> merged_path(refs, 4)
    '3/000000000017-1-2-from-000000000016-by-4.layer'
    >>> merged = LayerRef(3, 17, Incarnation(1, 2), 0, merged_path(refs, 4), 0, 0)
    >>> merged_path([merged, LayerRef(3, 18, Incarnation(1, 2), 0, "", 0, 0)], 4)
    '3/000000000018-1-2-from-000000000016-by-4.layer'
    """
    first, last = chosen[0], chosen[-1]
    name = _PATH.fullmatch(first.path)
    start = int(name[6]) if name is not None and name[6] else first.epoch
    plain = layer_path(last.task, last.epoch, last.incarnation)
    return plain.replace(".layer", f"-from-{start:012d}-by-{term}.layer")


def merged_here_path(chosen: Sequence[LayerRef], life: Incarnation) -> str:
    """The same for a merge in a slot: no other life ever gives this name.

    Examples
    --------
    >>> refs = [LayerRef(3, e, Incarnation(1, 2), 0, "", 0, 0) for e in (16, 17)]
    >>> merged_here_path(refs, Incarnation(4, 5))
    '3/000000000017-1-2-from-000000000016-by-4-5.layer'
    """
    return merged_path(chosen, life.term).replace(".layer", f"-{life.n}.layer")


def left_behind(
    stored: Iterable[str],
    chains: Mapping[int, Sequence[LayerRef]],
    lives: Mapping[int, Incarnation],
) -> list[str]:
    """Which of these files no process will read.

    These are layers that earlier drivers have left, and those that came too late for a floor: from
    earlier lives, or from merges that were not wanted. Files that are no layers are never among
    them.

    Parameters
    ----------
    stored
        All files in the store, unfinished ones included.
    chains
        The layers that the journal refers to, by task.
    lives
        Of each task, the newest life. Its layers may yet become floors; those of a later driver are
        not ours.

    Examples
    --------
    >>> def ref(epoch, term):
    ...     path = layer_path(3, epoch, Incarnation(term, 2))
    ...     return LayerRef(3, epoch, Incarnation(term, 2), 0, path, 0, 0)
    >>> stored = [ref(e, t).path for e, t in ((17, 1), (17, 2), (18, 2), (16, 3), (18, 3), (9, 4))]
    >>> left_behind([*stored, "else"], {3: (ref(17, 2),)}, {3: Incarnation(3, 2)})
    ['3/000000000017-1-2.layer', '3/000000000018-2-2.layer', '3/000000000016-3-2.layer']
    >>> left_behind(stored[-2:], {3: (ref(17, 2),)}, {3: Incarnation(3, 3)})
    ['3/000000000018-3-2.layer']
    >>> left_behind(stored[-2:], {}, {2: Incarnation(4, 1)})  # of a plan without task 3
    ['3/000000000018-3-2.layer']
    """
    now = Incarnation(max((life.term for life in lives.values()), default=0), 0)
    used = {ref.path for chain in chains.values() for ref in chain if ref.level == STORE}
    found = []
    for path in stored:
        name = _PATH.fullmatch(path)
        if name is None or path in used:
            continue
        task, number = int(name[1]), int(name[3])
        chain = chains.get(task, ())
        newest = lives.get(task, now)  # no such task any more: it was of another plan
        maker = Incarnation(int(name[4]), int(name[5]))
        if name[7]:  # merged, from layers in the chain: by a driver, or by a life of the task
            maker = Incarnation(int(name[7]), int(name[8]) if name[8] else newest.n)
        is_late = bool(chain) and number <= chain[-1].epoch
        if maker < newest or (maker.term == newest.term and is_late):
            found.append(path)
    return found


def left_by_earlier(
    stored: Iterable[str], task: int, life: Incarnation, named: Collection[str]
) -> list[str]:
    """Which files of earlier lives of a task on a disk are of no use any more.

    They are layers that were written and never reported, and unfinished merges and copies. A file
    that is being written now is made by this life, or will be one of those named.

    Parameters
    ----------
    stored
        Whatever is on the disk, unfinished files included.
    named
        All layers that count of this task.

    Examples
    --------
    >>> def path(epoch, n):
    ...     return layer_path(3, epoch, Incarnation(1, n))
    >>> stored = [path(16, 1), path(17, 1), path(18, 2), "3/.000000000017-1-1.layer.9f.tmp"]
    >>> left_by_earlier(stored, 3, Incarnation(1, 2), {path(17, 1)})
    ['3/000000000016-1-1.layer']
    >>> left_by_earlier(["3/000000000017-1-1-from-000000000016-by-1-2.layer"], 3, (1, 3), set())
    ['3/000000000017-1-1-from-000000000016-by-1-2.layer']
    """
    found = []
    for path in stored:
        name = _PATH.fullmatch(path)
        if name is None or int(name[1]) != task or f"{task}/{name[2]}" in named:
            continue
        maker = (name[7], name[8]) if name[8] else (name[4], name[5])
        if (int(maker[0]), int(maker[1])) < life:
            found.append(path)
    return found


def merge_layers(
    layers: Sequence[Layer], merge_deltas: Callable[..., bytes | Content], *, is_base: bool
) -> Layer:
    """Return one layer with the effect of `layers`; its position is that of the last one.

    Parameters
    ----------
    merge_deltas
        Merges deltas of the task's program.
    is_base
        Whether the first of them is the first layer of the task.
    """
    delta = merge_deltas([layer.delta for layer in layers], is_base=is_base)
    return replace(layers[-1], delta=delta)


def encode_layer(layer: Layer) -> bytes:
    """Return the bytes of `layer`, the same for equal layers.

    Examples
    --------
    >>> layer = Layer(task=3, incarnation=Incarnation(1, 2), epoch=17, position=40, ins={5: (9, 1)},
    ...     outs={}, ended=(), dep={}, clock_ms=0, wake_ms=None, source_rows=0,
    ...     source_ended=False, delta=b"state")
    >>> decode_layer(encode_layer(layer)) == layer
    True
    """
    return bytes(layer_chunks(layer))


def layer_chunks(layer: Layer) -> Chunks:
    """The same bytes, put together only when they are read."""
    ordered = replace(
        layer,
        ins=dict(sorted(layer.ins.items())),
        outs=dict(sorted(layer.outs.items())),
        dep=dict(sorted(layer.dep.items())),
        carried=dict(sorted(layer.carried.items())),
        delta=b"",
    )
    header = CODEC.encode(ordered)
    rows = encode(_rows_of(ordered)) if layer.carried else b""
    head = b"".join((_HEAD.pack(_MAGIC, _VERSION, len(header), len(rows)), header, rows))
    delta = chunks_of(layer.delta)
    return Chunks([head, delta, _CHECKSUM.pack(_checksum(head, delta))])


def _checksum(head: bytes, delta: Chunks) -> int:
    state, left = xxh3_64(head), -1
    for chunk in delta:
        if left < 0:
            left = _covered(chunk, len(delta))
        state.update(chunk[:left])
        left -= len(chunk)
        if left <= 0:
            break
    checksum: int = state.intdigest()
    return checksum


def _covered(first: bytes, nbytes: int) -> int:
    """How much of a delta the layer's checksum covers."""
    if len(first) < UP_TO.size or not first.startswith(CHECKS_ITSELF):
        return nbytes
    up_to: int = UP_TO.unpack_from(first)[1]
    return max(min(up_to, nbytes), UP_TO.size)


def decode_layer(data: bytes | Content, *, where: str = "") -> Layer:
    """Return the layer in `data`.

    Parameters
    ----------
    data
        What :func:`encode_layer` returned. If it is not in memory and its delta checks itself, only
        the part is read that the checksum covers.
    where
        Path of the layer, for the error.

    Raises
    ------
    UnreadableLayer
        `data` is anything else; nothing else is ever raised.
    """
    content = content_of(data)
    end = len(content) - _CHECKSUM.size
    if end < _HEAD.size:
        raise _damaged(where, f"{len(content)} bytes are too few for a layer")
    head = content.read(0, _HEAD.size)
    magic, version, header_bytes, row_bytes = _HEAD.unpack(head)
    if magic != _MAGIC:
        raise _damaged(where, "it is not a layer")
    if version != _VERSION:
        raise UnreadableLayer(
            f"the layer has format version {version}, this clonos reads {_VERSION}",
            where=where,
            remedy="go on with the version of clonos that wrote it, or start the job afresh",
        )
    rows = _HEAD.size + header_bytes
    delta = rows + row_bytes
    if delta > end:
        raise _damaged(where, "its header is longer than itself")
    beginning = content.read(0, delta)
    rest = Part(content, delta, end)
    (checksum,) = _CHECKSUM.unpack(content.read(end, len(content)))
    if _checksum(beginning, Chunks([rest])) != checksum:
        raise _damaged(where, "its checksum is wrong")
    try:
        layer = CODEC.decode(memoryview(beginning)[_HEAD.size : rows])
    except MalformedMessage as error:
        raise _damaged(where, error.what) from error
    if not isinstance(layer, Layer):
        raise _damaged(where, f"its header is a {type(layer).__name__}")
    if layer.carried:
        layer = replace(layer, carried=_with_rows(layer, beginning[rows:], where))
    is_read = isinstance(data, bytes) or _covered(rest.read(0, UP_TO.size), len(rest)) == len(rest)
    return replace(layer, delta=rest.read(0, len(rest)) if is_read else rest)


def _rows_of(layer: Layer) -> list[Any]:
    """What the header lacks of the carried items."""
    items = (item for _, items in layer.carried.values() for item in items)
    return [item.batch.payload for item in items if item.batch is not None]


def _with_rows(layer: Layer, rows: bytes, where: str) -> dict[int, tuple[int, tuple[Item, ...]]]:
    """The carried items, with their rows."""

    def whole(item: Item) -> Item:
        if item.batch is None:
            return item
        return replace(item, batch=item.batch._replace(payload=next(payloads)))

    try:
        payloads = iter(decode(rows))
        return {c: (chain, tuple(map(whole, i))) for c, (chain, i) in layer.carried.items()}
    except Exception as error:
        raise _damaged(where, f"its rows are not what was written: {error}") from error


def refer_to(
    layer: Layer, content: bytes | Content, path: str, nbytes: int, level: str = STORE
) -> LayerRef:
    """Return the reference to `layer`, which is stored as `content` under `path`.

    Parameters
    ----------
    nbytes
        Its size in the store.
    level
        The level at which it is kept.
    """
    end = len(content)
    (digest,) = _CHECKSUM.unpack(content_of(content).read(end - _CHECKSUM.size, end))
    return LayerRef(
        layer.task, layer.epoch, layer.incarnation, layer.position, path, nbytes, digest, level
    )


def open_layer(data: bytes | Content, ref: LayerRef) -> Layer:
    """Return the layer in `data`, which was found where `ref` says.

    Raises
    ------
    UnreadableLayer
        It is damaged, or it is another layer: of another task, life or epoch, or of another job
        that keeps its layers in the same place.
    """
    layer = decode_layer(data, where=ref.path)
    found = refer_to(layer, data, ref.path, ref.nbytes, ref.level)
    if found != ref:
        raise UnreadableLayer(
            f"another layer is in its place: {_described(found)}, not {_described(ref)}",
            where=ref.path,
            remedy="check that no other job has this checkpoint_dir; recover from a copy of it, or "
            "start the job afresh in another one",
        )
    return layer


def _described(ref: LayerRef) -> str:
    life = f"{ref.incarnation.term}.{ref.incarnation.n}"
    where = f"epoch {ref.epoch}, position {ref.position}"
    return f"task {ref.task}, life {life}, {where}, digest {ref.digest:016x}"


def _damaged(where: str, why: str) -> UnreadableLayer:
    return UnreadableLayer(
        f"the layer cannot be read: {why}",
        where=where,
        remedy="recover from an older floor or another standby; check the store's disk",
    )
