"""Entries of Redis Streams, by their ids.

A batch has the entries of each stream together, in the order of their ids. Its cut records the id
before the first, the last id, and the number of entries.

A stream does not say what was trimmed, but how many entries it ever had. So the reader counts, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit
from zlib import crc32

import msgpack
import pyarrow as pa

from clonos.columns.instants import to_ms
from clonos.columns.schema import TIMESTAMP
from clonos.columns.urls import is_url
from clonos.errors import ProtocolError, SourceError, WrongType
from clonos.extras import imported
from clonos.sources.outage import Outage
from clonos.sources.readers import CutReader

ANSWER_S: Final = 10.0
"""How long to wait for an answer, beyond the time that the command may block."""

CHECK_S: Final = 5.0
"""How often the reader looks whether entries were trimmed before it has read them."""

METADATA: Final = (
    pa.field("stream", pa.string()),
    pa.field("id", pa.string()),
    pa.field("timestamp", TIMESTAMP),
)
"""The metadata columns of an entry; the time is taken from its id."""

_FIRST: Final = "0-0"
_LAST_OF_MS: Final = (1 << 64) - 1
_IN_DATABASE: Final = " in database "

_LOG: Final = logging.getLogger("clonos")

T = TypeVar("T")


@dataclass(frozen=True)
class Span:
    """A number of entries after the id `after`; the last one is `last`.

    ``passed``: how many the stream ever had up to the last one, if that is known.
    """

    after: str
    last: str
    rows: int
    passed: int | None = None


def encode(spans: Mapping[str, Span]) -> bytes:
    """Encode a batch's cut: spans by stream, in the order of its rows.

    Examples
    --------
    >>> cut = {"clicks": Span("0-0", "17-1", 4)}
    >>> decode(encode(cut)) == cut
    True
    """
    packed: bytes = msgpack.packb(
        {s: (span.after, span.last, span.rows, span.passed) for s, span in spans.items()}
    )
    return packed


def decode(cut: bytes) -> dict[str, Span]:
    """Inverse of :func:`encode`; anything else raises `SourceError`."""
    try:
        return {stream: Span(*said) for stream, said in msgpack.unpackb(cut).items()}
    except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise SourceError(
            f"{len(cut)} bytes do not say where in a stream they lie: {error}",
            remedy="check that the source of this name was a Redis source when the job began",
        ) from error


def forget(cut: bytes, streams: Collection[str]) -> bytes:
    """A cut without these streams, named as in `Streams.reads`; empty if nothing is left."""
    gone = {*streams, *(name.rpartition(_IN_DATABASE)[0] for name in streams)}
    left = {stream: span for stream, span in decode(cut).items() if stream not in gone}
    return encode(left) if left else b""


@dataclass(frozen=True)
class Streams:
    """The streams to read from a server.

    Parameters
    ----------
    url
        Only :meth:`connect` uses the password.
    columns
        The fields to read of each entry.
    start
        Where a new task begins: "earliest", "latest" or a time.
    """

    url: str = field(repr=False)
    names: tuple[str, ...]
    columns: tuple[str, ...]
    start: str | datetime = "earliest"
    has_metadata: bool = False

    def __post_init__(self) -> None:
        # After an unescaped / in a password, its rest is a path, which errors would show.
        if not is_url(self.url, {"redis", "rediss", "unix"}) or "@" in urlsplit(self.url).path:
            raise WrongType(
                "this is not a Redis URL",
                where="redis",
                remedy='write "redis://host:6379/0"; in a password, / as %2F and @ as %40',
            )

    forget = staticmethod(forget)

    @property
    def place(self) -> str:
        """The server for messages, without the password."""
        parts = urlsplit(self.url)
        return f"Redis at {parts.hostname or parts.path}:{parts.port or 6379}"

    @property
    def reads(self) -> tuple[str, ...]:
        """The streams, with the database unless it is the first: a server has several, and streams
        of one name in each."""
        number = _database(self.url)
        return tuple(f"{name}{_IN_DATABASE}{number}" if number else name for name in self.names)

    @property
    def schema(self) -> pa.Schema:
        """The schema of readers: each field as bytes."""
        fields = [pa.field(name, pa.binary()) for name in self.columns]
        return pa.schema([*fields, *(METADATA if self.has_metadata else ())])

    def connect(self) -> Any:
        """A client, which connects on demand and reconnects."""
        return driver().Redis.from_url(
            self.url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S
        )


class RedisReader(CutReader):
    """One task's streams: a stream belongs to task CRC-32 of its name modulo the parallelism."""

    def __init__(self, streams: Streams, task_index: int, parallelism: int) -> None:
        self.schema = streams.schema
        self._streams = streams
        mine = (n for n in streams.names if crc32(n.encode()) % parallelism == task_index)
        self._names = tuple(sorted(mine))
        self._client: Any = None
        self._outage = Outage(streams.place)
        self._last: dict[str, str] = {}  # the last delivered id
        self._passed: dict[str, int] = {}  # how many entries each stream had up to that id
        self._told: set[str] = set()  # streams of which entries are known to be missing
        self._short: set[str] = set()  # streams that end before what was read ...
        self._ends: dict[str, tuple[int, str]] = {}  # ... where, and on which connection
        self._check_at = 0.0
        self._turn = 0  # which stream comes first in the next batch
        self._full = 0  # how many had as many entries as were asked for

    def open(self, rows_consumed: int, cut: bytes = b"") -> None:
        """See :meth:`CutReader.open`."""
        del rows_consumed
        self.cut = cut
        spans = decode(cut) if cut else {}
        self._last = {stream: span.last for stream, span in spans.items()}
        self._passed = {s: span.passed for s, span in spans.items() if span.passed is not None}
        self._short, self._ends = set(), {}
        self._check_at = 0.0
        if self._client is None:
            self._client = self._streams.connect()

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        new = [stream for stream in self._names if stream not in self._last]
        if new or not self.cut:
            return self._begin(new)
        self._require_named()
        if not self._names:
            time.sleep(max_wait_s)
            return None
        # What does not fit into the batch would be sent again with the next one.
        count = -(-max_rows // (self._full or len(self._last)))
        wait_ms = max(int(max_wait_s * 1000), 1)  # 0 would mean for ever
        order = sorted(self._last)
        order = order[self._turn :] + order[: self._turn]
        try:
            if time.monotonic() >= self._check_at:
                self._check()
            found = self._client.xread({name: self._last[name] for name in order}, count, wait_ms)
            if isinstance(found, dict):  # with ?protocol=3 in the URL
                found = [(stream, entries) for stream, (entries,) in found.items()]
        except driver().RedisError as error:
            self._wait(error)
            return None
        self._outage.over()
        self._full = sum(len(entries) >= count for _, entries in found)
        taken = self._share(((stream.decode(), entries) for stream, entries in found), max_rows)
        return self._batch(taken) if taken else None

    def _share(self, found: Iterable[tuple[str, Sequence[Any]]], rows: int) -> dict[str, Any]:
        """The first `rows` entries; the stream that did not get all of its own is next."""
        taken: dict[str, Any] = {}
        is_short = False
        for stream, entries in found:
            if len(entries) > rows and not is_short:
                is_short = True
                self._turn = sorted(self._last).index(stream)
            if some := entries[:rows]:
                taken[stream] = some
                rows -= len(some)
        return taken

    def read_cut(self, cut: bytes) -> pa.RecordBatch:
        """See :meth:`CutReader.read_cut`."""
        spans = decode(cut)
        if any(self._last.get(stream, s.after) != s.after for stream, s in spans.items()):
            raise ProtocolError("cuts are read out of order", remedy="report this as a bug")
        self._last = {stream: span.after for stream, span in spans.items()}
        self._passed = {
            s: span.passed - span.rows for s, span in spans.items() if span.passed is not None
        }
        return self._batch({s: self._again(s, span) for s, span in spans.items() if span.rows})

    def close(self) -> None:
        """See :meth:`Reader.close`."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _begin(self, streams: Sequence[str]) -> pa.RecordBatch:
        """Choose where to begin with these; the cut of an empty batch logs it before anything is
        read."""
        try:
            self._client.ping()
            self._last = {**self._last, **{stream: self._start(stream) for stream in streams}}
            self._check()
        except driver().RedisError as error:
            raise self._failed("it does not answer", error) from error
        return self._batch({})

    def _require_named(self) -> None:
        """Raise if it has a position in a stream that it is not to read."""
        if others := sorted(self._last.keys() - set(self._names)):
            raise SourceError(
                f"the job has read {', '.join(others)}, too, and the source does not name that",
                where=self._streams.place,
                remedy="name it again; or let the job settle with it, and start it with "
                "upgrade=True and drop_state=",
            )

    def _start(self, stream: str) -> str:
        """The id after which a new task begins."""
        start = self._streams.start
        if isinstance(start, datetime):
            before = to_ms(start) - 1
            return f"{before}-{_LAST_OF_MS}" if before >= 0 else _FIRST
        if start == "earliest":
            return _FIRST
        found = self._client.xrevrange(stream, count=1)
        return found[0][0].decode() if found else _FIRST

    def _again(self, stream: str, span: Span) -> Any:
        """The entries of a span, which were read before."""
        found = self._patiently(
            lambda: self._client.xrange(stream, f"({span.after}", span.last, span.rows + 1)
        )
        if len(found) != span.rows or found[-1][0].decode() != span.last:
            raise SourceError(
                f"entries of stream {stream!r} that are needed again are gone "
                f"({len(found)} of {span.rows} are there)",
                where=self._streams.place,
                remedy="keep entries longer than a job may stand still (MAXLEN, MINID, XTRIM), and "
                "delete none; or start the job afresh, with another checkpoint_dir",
            )
        return found

    def _check(self) -> None:
        """Warn of entries that were removed before they were read, once per stream; and of a stream
        that ends before what was read."""
        self._check_at = time.monotonic() + CHECK_S
        names = sorted(self._last)
        with self._client.pipeline(transaction=False) as asked:
            for stream in names:
                asked.xinfo_stream(stream)
            asked.execute_command("HELLO")
            *answers, hello = asked.execute(raise_on_error=False)
        connection = _connection_of(hello)
        for stream, info in zip(names, answers, strict=True):
            is_gone = isinstance(info, Exception) and "no such key" in str(info)
            if is_gone or not isinstance(info, Exception):
                end = _FIRST if is_gone else info["last-generated-id"].decode()
                self._look_at_end(stream, end, connection)
            if isinstance(info, Exception):
                # A stream that is not there yet has had no entries.
                passed = 0 if is_gone and self._last[stream] == _FIRST else None
            else:
                passed = _passed(info, self._last[stream])
            if passed is None:
                continue
            missing = passed - self._passed.get(stream, passed)
            self._passed[stream] = passed  # fewer than before if the stream was created again
            self.missed += max(missing, 0)
            if missing > 0 and stream not in self._told:
                self._told.add(stream)
                _LOG.warning(
                    "%s: entries of stream %r were trimmed or deleted before they were read; the "
                    "job goes on without them (%d so far). Keep entries longer than it may be "
                    "behind or stand still (MAXLEN, MINID, XTRIM).",
                    self._streams.place,
                    stream,
                    missing,
                )

    def _look_at_end(self, stream: str, end: str, connection: int | None) -> None:
        """Notice a stream whose new entries come before what was read, so that they are not read.

        A server that has come back without its last entries, and a replica that lags, have fewer
        entries, too. What they have was read, and new entries of a primary get greater ids. A
        stream also grows if a replica catches up, or if another server becomes the primary; so only
        what a primary says on the same connection counts (None: it is no primary).
        """
        last = self._last[stream]
        if _order(end) >= _order(last) or last.endswith(f"-{_LAST_OF_MS}"):  # or begins at a time
            self._ends.pop(stream, None)
            self._short.discard(stream)
            return
        if connection is not None:
            before, self._ends[stream] = self._ends.get(stream), (connection, end)
            if before is not None and before[0] == connection and _order(end) > _order(before[1]):
                raise SourceError(
                    f"stream {stream!r} was made again with lower ids: entries up to {end} are "
                    f"new, and the job has read up to {last}",
                    where=self._streams.place,
                    remedy="start the job afresh, with another checkpoint_dir; or read the new "
                    "stream in a source of another name (upgrade=True, drop_state=)",
                )
        if end != _FIRST and stream not in self._short:
            self._short.add(stream)
            self.shrunk += 1
            _LOG.warning(
                "%s: stream %r ends at %s, before %s, which the job has read. Either the server "
                "has lost its last entries, or the stream was deleted and made again. The job goes "
                "on after what it has read; entries with lower ids are not in it.",
                self._streams.place,
                stream,
                end,
                last,
            )

    def _patiently(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                found = ask()
            except driver().RedisError as error:
                self._wait(error)
            else:
                self._outage.over()
                return found

    def _wait(self, error: Exception) -> None:
        """Wait a little, if it may help to ask again."""
        if _is_refusal(error) or not isinstance(error, _away()):
            raise self._failed("cannot be read", error) from error
        self._outage.wait(str(error))

    def _batch(self, taken: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
        spans: dict[str, Span] = {}
        entries: list[Any] = []
        streams: list[str] = []
        for stream in sorted(self._last):
            rows, after = taken.get(stream, ()), self._last[stream]
            last = rows[-1][0].decode() if rows else after
            if stream in self._passed:
                self._passed[stream] += len(rows)
            spans[stream] = Span(after, last, len(rows), self._passed.get(stream))
            entries += rows
            streams += [stream] * len(rows)
        self._last = {stream: span.last for stream, span in spans.items()}
        self.cut = encode(spans)
        columns = [
            pa.array([values.get(name) for _, values in entries], pa.binary())
            for name in (column.encode() for column in self._streams.columns)
        ]
        if self._streams.has_metadata:
            ids = [number.decode() for number, _ in entries]
            times = pa.array([1000 * int(number.split("-")[0]) for number in ids], pa.int64())
            columns += [
                pa.array(streams, pa.string()),
                pa.array(ids, pa.string()),
                times.cast(TIMESTAMP),
            ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _failed(self, what: str, error: Exception) -> SourceError:
        remedy = "check that every executor reaches the server, and that these are streams"
        if _is_refusal(error):
            remedy = (
                "check the user and password of the URL, and that this user may read these streams"
            )
        return SourceError(f"{what}: {error}", where=self._streams.place, remedy=remedy)


def driver() -> Any:
    """The module redis.

    Raises
    ------
    DefinitionError
        It is not installed.
    """
    return imported("redis", extra="redis", where="sources.redis")


def _away() -> tuple[type[Exception], ...]:
    """Temporary errors: a server that is away, is starting, or has a new primary."""
    found = driver()
    names = ("ConnectionError", "TimeoutError", "BusyLoadingError", "ReadOnlyError")
    return tuple(getattr(found, name) for name in names)


def _is_refusal(error: Exception) -> bool:
    """Whether the server refuses this user. For the client, that can be a connection error."""
    found = driver().exceptions
    names = ("AuthenticationError", "AuthorizationError", "NoPermissionError")
    return isinstance(error, tuple(getattr(found, name) for name in names))


def _passed(info: Mapping[str, Any], last: str) -> int | None:
    """How many entries a stream ever had that do not come after `last` any more; None: not known.

    Those after it cannot be counted if some of the entries that are there come before it.
    """
    added: int | None = info.get("entries-added")
    at = _order(last)
    # Servers before 7.0 do not count. Entries before the time where a task begins are not read.
    if added is None or _order(info["last-generated-id"].decode()) < at:
        return None
    if not info["length"] or _order(info["last-entry"][0].decode()) <= at:
        return added
    return added - int(info["length"]) if _order(info["first-entry"][0].decode()) > at else None


def _connection_of(hello: Any) -> int | None:
    """The number of our connection, from the answer to HELLO of a server that takes writes; None:
    it takes none, or does not say so."""
    if isinstance(hello, list):
        hello = dict(zip(hello[::2], hello[1::2], strict=False))
    if not isinstance(hello, dict) or hello.get(b"role") != b"master":
        return None
    return int(hello[b"id"])


def _database(url: str) -> int:
    """The number of the database in a URL, as the client finds it."""
    parts = urlsplit(url)
    asked = parse_qs(parts.query).get("db") or [unquote(parts.path).replace("/", "")]
    if parts.scheme == "unix":  # whose path is that of a file
        asked = parse_qs(parts.query).get("db") or [""]
    try:
        return int(asked[0])
    except ValueError:
        return 0


def _order(number: str) -> tuple[int, int]:
    ms, _, sequence = number.partition("-")
    return int(ms), int(sequence)
