"""Rows as HTTP requests, each with a name that stays the same however often it is sent.

The progress is not recorded anywhere. A new life of a task sends requests again, under the same
names (``Idempotency-Key``). A service that remembers names has each row once.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

import pyarrow as pa

from clonos.blame import in_short
from clonos.columns.urls import is_url
from clonos.errors import ClonosError, NameConflict, RowRefused, SinkFailed, StoreAway, WrongType
from clonos.sinks.json_texts import as_json, require_writable
from clonos.sinks.lanes import Lane, Output, OutputKey
from clonos.sinks.spec import Claim
from clonos.storage.files import files_of, folder_name
from clonos.storage.folder import Folder
from clonos.storage.retry import may_pass
from clonos.storage.retry_after import retry_after_s
from clonos.storage.watchdog import Watchdog

Body = Literal["array", "lines", "object"]
"""The body of a request: an array of rows, a row per line, or one row."""

ANSWER_BYTES: Final = 1 << 16
"""How much of an answer is read."""
SHOWN: Final = 200
"""How many characters of an answer an error shows."""

_SINK_BYTES_MAX: Final = 200
"""Of a sink's name in the names of dead letters."""
_REFUSED: Final = (400, 413, 415, 422)
"""Status codes that refuse the rows."""
_AGAIN: Final = (408, 425, 429)
"""Status codes of temporary failures."""
_CONFLICT: Final = 409
"""Either a request of this name is still under way, which is temporary, or the service has another
conflict, which lasts. Only time can tell."""
_TYPES: Final = {
    "array": "application/json",
    "lines": "application/x-ndjson",
    "object": "application/json",
}


@dataclass(frozen=True, repr=False)
class Endpoint:
    """The target of requests. Messages never show headers, or what follows the path.

    Parameters
    ----------
    key
        The header with the request's name.
    rows
        The largest number of rows in a request.
    timeout_s
        How long to wait for an answer: for the whole of it, once the request is sent.
    dead_letters
        The folder of rows that the service refuses; None: they fail the job.
    under_way_s
        How long a conflict may last.
    """

    url: str
    headers: Mapping[str, str]
    body: Body
    key: str
    rows: int
    timeout_s: float
    dead_letters: str | None
    under_way_s: float

    def __repr__(self) -> str:
        return f"<HTTP: {self.place}>"

    @property
    def place(self) -> str:
        """The endpoint's name in errors."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}:{self.port}{parts.path}"

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def target(self) -> str:
        """The request target: path and query."""
        parts = urlsplit(self.url)
        return f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"

    def connect(self) -> http.client.HTTPConnection:
        """A connection, which connects on first use."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            secure = ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                host, self.port, timeout=self.timeout_s, context=secure
            )
        else:
            connection = http.client.HTTPConnection(host, self.port, timeout=self.timeout_s)
        connection.response_class = _FinalAnswer
        return connection


class _FinalAnswer(http.client.HTTPResponse):
    """Skips answers that come before the final one, such as 102 and 103; Python skips only 100."""

    def begin(self) -> None:
        super().begin()
        while 100 < self.status < 200 and self.status != HTTPStatus.SWITCHING_PROTOCOLS:
            self.headers = None  # type: ignore[assignment]  # otherwise `begin` takes it for read
            super().begin()


@dataclass(frozen=True)
class HttpStore:
    """A :class:`~clonos.sinks.spec.Store`. It claims nothing: requests' names contain the run."""

    endpoint: Endpoint

    @property
    def place(self) -> str | None:
        return None

    def check(self, schema: pa.Schema) -> None:
        require_writable(schema, "http")

    def claim(self, lane: Lane, tasks: int) -> Claim | None:
        return None

    def writer(self, lane: Lane) -> HttpWriter:
        return HttpWriter(self.endpoint, lane)


@dataclass(frozen=True)
class _Request:
    """The rows of an output from `first` up to, but not including, `end`."""

    key: OutputKey
    first: int
    end: int
    rows: pa.RecordBatch = field(repr=False)

    def halves(self) -> tuple[_Request, _Request]:
        middle = (self.first + self.end) // 2
        return self.part(self.first, middle), self.part(middle, self.end)

    def part(self, first: int, end: int) -> _Request:
        rows = self.rows.slice(first - self.first, end - first)
        return _Request(self.key, first, end, rows)


class _Refused(Exception):
    """The service refuses these rows."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text[:SHOWN]}".strip())
        self.status, self.text = status, text


class HttpWriter:
    """An :class:`~clonos.sinks.lanes.OutputWriter`: requests one after the other, in order."""

    def __init__(self, endpoint: Endpoint, lane: Lane) -> None:
        self._endpoint, self._lane = endpoint, lane
        self._connection: http.client.HTTPConnection | None = None
        # A connection's own limit is that of a single read: an answer may come a byte at a time.
        self._watchdog = Watchdog(self._cut_off, endpoint.timeout_s)
        self._listens_at: socket.socket | None = None
        self._is_used = False  # it has had an answer, so the server may close it any time
        self._sent: tuple[OutputKey, int] | None = None  # the output, and the next row
        self._conflict: tuple[str, float] | None = None  # the name, and when it began

    def write(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            for request in self._requests(output):
                if self._sent is None or (request.key, request.end) > self._sent:
                    self._deliver(request)
                    self._sent = request.key, request.end

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._is_used = False
        self._watchdog.close()
        if connection is not None:
            with suppress(OSError):
                connection.close()

    def name(self, request: _Request) -> str:
        """A request's name: unique, and the same in all lives."""
        lane = quote(self._lane.name, safe="/")
        generation, seq = request.key
        return f"{lane}/{generation}/{seq}/{request.first}-{request.end}"

    def _requests(self, output: Output) -> Iterator[_Request]:
        rows, step = output.batch, self._endpoint.rows
        whole = _Request(output.key, 0, rows.num_rows, rows)
        for first in range(0, rows.num_rows, step):
            yield whole.part(first, min(first + step, rows.num_rows))

    def _deliver(self, request: _Request) -> None:
        """Send a request; if it is refused, send halves to find the refused rows."""
        try:
            self._send(request)
        except _Refused as refused:
            if request.end - request.first > 1:
                for half in request.halves():
                    self._deliver(half)
            elif self._endpoint.dead_letters is None:
                raise RowRefused(
                    f"the service refuses a row: {refused} (for {_text(request)[:SHOWN]})",
                    where=f"{self._lane.task}, {self._endpoint.place}",
                    remedy="correct the service and start the job again, or say dead_letters="
                    "with a folder for such rows",
                ) from None
            else:
                self._bury(request, refused, self._endpoint.dead_letters)

    def _send(self, request: _Request) -> None:
        status, retry_after, text = self._answer(request)
        if 200 <= status < 300:
            return
        if status in _REFUSED:
            raise _Refused(status, text)
        told = f"the service answers {status} {text[:SHOWN]}".strip()
        if status == _CONFLICT:
            raise self._in_conflict(request, told, retry_after)
        if status in _AGAIN or (status >= 500 and status != 501):
            raise self._away(told, retry_after)
        raise SinkFailed(
            told,
            where=f"{self._lane.task}, {self._endpoint.place}",
            remedy="check that url and headers are right, and start the job again; redirections "
            "are not followed",
        )

    def _in_conflict(self, request: _Request, told: str, retry_after: float) -> ClonosError:
        """The error for a conflict. Whether the service has the rows is unknown, so the request is
        neither halved nor a dead letter."""
        name, now = self.name(request), time.monotonic()
        if self._conflict is None or self._conflict[0] != name:
            self._conflict = name, now
        since_s = now - self._conflict[1]
        if since_s < self._endpoint.under_way_s:
            return self._away(told, retry_after)
        return NameConflict(
            f"for {since_s:.0f} s of the request {name}: {told}",
            where=f"{self._lane.task}, {self._endpoint.place}",
            remedy="ask the service what it has of that request. If it is still under way, start "
            "the job again, with a longer under_way=; if not, let the service take it under this "
            "name, or answer 422 to rows that it refuses and 200 to a name that it has",
        )

    def _answer(self, request: _Request) -> tuple[int, float, str]:
        """Send and receive: the status, the requested pause, and the text."""
        endpoint = self._endpoint
        headers = {
            "Content-Type": _TYPES[endpoint.body],
            **endpoint.headers,
            endpoint.key: self.name(request),
        }
        content = self._content(request)
        while True:
            was_used = self._is_used
            try:
                if self._connection is None:
                    self._connection = endpoint.connect()
                self._connection.request("POST", endpoint.target, content, headers)
                self._listens_at = self._connection.sock
                self._watchdog.begin()
                answer = self._connection.getresponse()
                text = answer.read(ANSWER_BYTES).decode(errors="replace")
                self._watchdog.end()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not was_used:  # else the server may have closed it while it was idle
                    raise self._away(f"no answer: {in_short(error)}") from error
                continue
            self._is_used = True
            if not answer.isclosed():  # the answer was not read to its end
                self.close()
            return answer.status, retry_after_s(answer.headers.get("Retry-After")), text

    def _cut_off(self) -> None:
        """The answer takes too long: have its reader hear so."""
        if (connection := self._listens_at) is not None:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _content(self, request: _Request) -> bytes:
        rows = _texts(request)
        if self._endpoint.body == "object":
            return rows[0].encode()
        if self._endpoint.body == "lines":
            return "".join(f"{row}\n" for row in rows).encode()
        return f"[{','.join(rows)}]".encode()

    def _bury(self, request: _Request, refused: _Refused, uri: str) -> None:
        """Store a refused row, once, even if several lives do it."""
        row = json.loads(_text(request))
        said = {"key": self.name(request), "status": refused.status, "answer": refused.text}
        name = "-".join(
            [
                folder_name(self._lane.name, _SINK_BYTES_MAX),
                f"{request.key.generation:04d}",
                f"{request.key.seq:012d}",
                f"{request.first:06d}.json",
            ]
        )
        try:
            files, root = files_of(uri)
            Folder(files, root, "fsync").keep(
                name,
                json.dumps({**said, "row": row}).encode(),
                lambda found: json.loads(found.to_pybytes())["row"] == row,
            )
        except OSError as error:
            kind: type[ClonosError] = StoreAway if may_pass(error) else SinkFailed
            raise kind(
                f"dead letters cannot be written: {error}",
                where=uri,
                remedy="check that every executor reaches the folder and may write to it",
            ) from error

    def _away(self, what: str, after_s: float = 0.0) -> StoreAway:
        away = StoreAway(what, where=f"{self._lane.task}, {self._endpoint.place}")
        away.after_s = after_s
        return away


def _texts(request: _Request) -> list[str]:
    rows = request.rows
    found: list[str] = as_json(
        pa.StructArray.from_arrays(rows.columns, fields=list(rows.schema))
    ).to_pylist()
    return found


def _text(request: _Request) -> str:
    return _texts(request)[0]


def check_url(url: str) -> None:
    """Raise `WrongType` if requests cannot be sent there."""
    if not is_url(url, {"http", "https"}) or not urlsplit(url).hostname:
        raise WrongType("this is not a URL", where="http", remedy='write "https://host/path"')
    if urlsplit(url).username is not None:
        raise WrongType(
            "the url has a user, which would not be sent",
            where="http",
            remedy='say headers={"Authorization": "Basic ..."}',
        )
    if not url.isascii() or not url.isprintable() or " " in url:
        raise WrongType(
            "the url has letters that cannot be sent",
            where="http",
            remedy="write them as urllib.parse.quote does: %20 for a space",
        )


def check_headers(headers: Mapping[str, Any], key: Any) -> dict[str, str]:
    """The headers as sent; raises `ValueError` if one cannot be sent or is reserved."""
    everything: list[tuple[Any, Any]] = [*headers.items(), (key, "")]
    for name, value in everything:
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError("a header is a text, and so is its name")  # noqa: TRY004 - see above
        if not name.isascii() or not name.replace("-", "").isalnum() or {"\r", "\n"} & set(value):
            raise ValueError(f"the header {name!r} cannot be sent")
        try:
            value.encode("latin-1")
        except UnicodeEncodeError:
            raise ValueError(f"the value of the header {name!r} cannot be sent") from None
        if name.lower() in {"content-length", "transfer-encoding"}:
            raise ValueError(f"the header {name!r} is not yours to set")
    return dict(headers)
