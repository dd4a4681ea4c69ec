"""Sources whose messages are offered only once: webhooks, MQTT, websockets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa

from clonos.arguments import require_types
from clonos.columns.durations import parse_duration
from clonos.columns.urls import is_url
from clonos.errors import BadSchema, WrongType
from clonos.sources.lines import PARSERS, short_reason
from clonos.sources.messages import Value, columns_of
from clonos.sources.offered import METADATA, OFFERED, ParseOffered
from clonos.sources.spec import Inlet, SourceSpec

_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


def webhook(
    port: int,
    path: str = "/",
    *,
    value: Value = "json",
    schema: Any = None,
    host: str = "127.0.0.1",
    token: str | None = None,
    secret: str | None = None,
    signature: str = "X-Hub-Signature-256",
    key: str = "Idempotency-Key",
    within: str | timedelta = "1 day",
    body_bytes: int = 1 << 20,
    metadata: bool = False,
) -> SourceSpec:
    """HTTP requests to the driver, one row each: an input without end.

    A sender gets its 200 when the body is on the disk below ``checkpoint_dir``; from then on the
    row is in the job once, whatever dies. If it gets none (503 with ``Retry-After``, or no answer),
    it sends the request again with the same key, and the row still is in the job once. Without a
    key, each request that got a 200 is one row, and each that got none may be one, too.

    Parameters
    ----------
    port, host
        Where the driver listens. By default it is reached only from its own machine, for example by
        a proxy that does TLS. Any other `host` needs a `token` or a `secret`.
    path
        POST requests to this path and below it are taken.
    value
        "json" (the body is an object, whose fields are the columns), "text" or "bytes" (a column
        ``value``). Any other body is refused with 422.
    schema
        The schema of "json" bodies.
    token
        Requests must have the header ``Authorization: Bearer`` with this token.
    secret
        The header `signature` must hold the body's HMAC-SHA256 with this secret, in hex, as in
        GitHub's webhooks.
    key
        The header with the key of a request. Of requests with equal keys the first is taken.
    within
        How long keys are remembered.
    body_bytes
        Longer bodies are refused with 413.
    metadata
        Add the columns ``key``, ``topic`` (the path), and ``received_at``.

    Examples
    --------
    >>> hooks = webhook(8080, "/orders", schema="id long, amount double", token="of senders")
    >>> hooks.rows_schema.names, hooks.inlet
    (['id', 'amount'], <webhook http://127.0.0.1:8080/orders>)
    """
    require_types(webhook, locals())
    # Every slot imports this package; only drivers listen.
    from clonos.sources.webhook_inlet import Webhook

    if host not in _LOOPBACK and token is None and secret is None:
        raise WrongType(
            f"everybody who reaches {host} could write to the job",
            where="webhook",
            remedy="give a token or a secret",
        )
    if "" in (token, secret):  # of an environment in which it is missing, say
        raise WrongType(
            "an empty token or secret, which everybody knows",
            where="webhook",
            remedy="give one that only the senders know, or None",
        )
    if not 0 < port < 1 << 16 or body_bytes < 1 or not path.startswith("/"):
        raise WrongType(
            f"port={port!r}, body_bytes={body_bytes!r}, path={path!r}",
            where="webhook",
            remedy='give a port from 1 to 65535, a number above 0, and a path such as "/orders"',
        )
    form = partial(_form, value, columns_of(value, schema))
    inlet = Webhook(host, port, path, token, secret, signature, key, body_bytes, form)
    return _offered("webhook", inlet, value, schema, within, metadata=metadata)


def mqtt(
    host: str,
    topics: str | Sequence[str],
    *,
    client_id: str,
    value: Value = "json",
    schema: Any = None,
    port: int | None = None,
    username: str | None = None,
    password: str | None = None,
    tls: bool = False,
    message_bytes: int = 1 << 20,
    metadata: bool = False,
) -> SourceSpec:
    """Messages of an MQTT broker, one row each: an input without end.

    The driver subscribes with QoS 1, and acknowledges a message when it is on the disk below
    ``checkpoint_dir``. The broker sends unacknowledged messages again. So a message published with
    QoS 1 or 2 is in the job at least once, and twice if the connection is lost after it was stored
    and before it was acknowledged. The broker must speak MQTT 5. The driver needs
    ``pip install ".[mqtt]"``.

    Parameters
    ----------
    topics
        Names, or filters such as ``"sensors/+/state"``.
    client_id
        The client id under which the broker keeps messages while the job is away. Only one job may
        use it.
    value
        "json" (an object per message, whose fields are the columns), "text" or "bytes" (a column
        ``value``). A message that cannot be parsed is a bad record.
    schema
        The schema of "json" messages.
    port
        By default 1883, or 8883 with `tls`.
    username, password
        Error messages never show them.
    message_bytes
        A longer message fails the job.
    metadata
        Add the columns ``key`` (null), ``topic`` and ``received_at``.

    Examples
    --------
    >>> states = mqtt("broker", "sensors/+/state", client_id="job", schema="t double")
    >>> states.rows_schema.names, states.inlet
    (['t'], <MQTT at broker:1883>)
    """
    require_types(mqtt, locals())
    # Every slot imports this package; only drivers subscribe.
    from clonos.sources.mqtt_inlet import Mqtt

    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names or not all(names) or not client_id:
        raise WrongType(
            "no topics or no client_id", where="mqtt", remedy="give both: neither may be empty"
        )
    if message_bytes < 1:
        raise WrongType(
            f"message_bytes={message_bytes!r}", where="mqtt", remedy="give a number above 0"
        )
    where = port if port is not None else (8883 if tls else 1883)
    inlet = Mqtt(host, where, names, client_id, username, password, tls, message_bytes)
    # The broker's session goes on with what was subscribed to, and another one has other messages.
    reads = tuple(f"{name} for {client_id}" for name in sorted(set(names)))
    return _offered("mqtt", inlet, value, schema, "1 day", metadata=metadata, reads=reads)


def websocket(
    url: str,
    *,
    subscribe: str | Sequence[str] = (),
    value: Value = "json",
    schema: Any = None,
    headers: Mapping[str, str] | None = None,
    message_bytes: int = 1 << 20,
    metadata: bool = False,
) -> SourceSpec:
    """Messages of a websocket server, one row each: an input without end.

    The driver connects, and connects again whenever the connection ends. Messages that are on the
    disk below ``checkpoint_dir`` are in the job exactly once. The protocol can neither acknowledge
    nor resume. So messages are lost that the server sends while no driver is connected, or that the
    driver has read but not stored when it dies, unless the server sends them again by itself. The
    job warns when a connection ends, at most once a minute; the logger ``clonos`` has each of them.
    The driver needs ``pip install ".[websocket]"``.

    Parameters
    ----------
    url
        ``"ws://..."`` or ``"wss://..."``. Error messages never show user, password and query.
        Redirections are not followed, and no proxy is used.
    subscribe
        Texts to send on each connection, before anything is read.
    value
        "json" (an object per message, whose fields are the columns), "text" or "bytes" (a column
        ``value``). A message that cannot be parsed is a bad record.
    schema
        The schema of "json" messages.
    headers
        Headers of the connecting request, such as ``Authorization``. Error messages never show
        them.
    message_bytes
        A longer message fails the job.
    metadata
        Add the columns ``key`` (null), ``topic`` (the path) and ``received_at``.

    Examples
    --------
    >>> trades = websocket(
    ...     "wss://feed.example/trades?token=x",
    ...     subscribe='{"subscribe": "ABC"}',
    ...     schema="price double",
    ... )
    >>> trades.rows_schema.names, trades.inlet
    (['price'], <websocket wss://feed.example:443/trades>)
    """
    require_types(websocket, locals())
    # Every slot imports this package; only drivers connect.
    from clonos.sources.websocket_inlet import Websocket

    texts = (subscribe,) if isinstance(subscribe, str) else tuple(subscribe)
    given = dict(headers or {})
    if not _is_websocket(url) or message_bytes < 1:
        raise WrongType(
            f"a url without ws:// or wss://, or without a host, or message_bytes={message_bytes!r}",
            where="websocket",
            remedy='give a url such as "wss://feed.example/trades", and a number above 0',
        )
    lines = [*texts, *given, *given.values()]
    if not all(isinstance(line, str) for line in lines) or any(
        letter in line for line in lines[len(texts) :] for letter in "\r\n"
    ):
        raise WrongType(
            "what is subscribed to, or a header, is not a text in one line",
            where="websocket",
            remedy="give texts; encode anything else, for example with json.dumps",
        )
    inlet = Websocket(url, texts, given, message_bytes)
    return _offered("websocket", inlet, value, schema, "1 day", metadata=metadata)


def _is_websocket(url: str) -> bool:
    return is_url(url, {"ws", "wss"}) and bool(urlsplit(url).hostname)


def _offered(
    kind: str,
    inlet: Inlet,
    value: Value,
    schema: Any,
    within: str | timedelta,
    *,
    metadata: bool,
    reads: tuple[str, ...] = (),
) -> SourceSpec:
    columns = columns_of(value, schema)
    beside = METADATA if metadata else ()
    if both := {field.name for field in METADATA} & set(columns.names):
        raise BadSchema(
            f"{', '.join(sorted(both))}: a column of the value and of the metadata",
            where=kind,
            remedy="rename the field where it is produced",
        )
    head = ParseOffered(value, columns, parse_duration(within), metadata)
    return SourceSpec(
        kind=kind,
        schema=OFFERED,
        factory=None,
        replayable=True,
        rows_schema=pa.schema([*columns, *beside]),
        head=head,
        parallelism_max=1,
        inlet=inlet,
        ends=False,
        reads=reads,
    )


def _form(value: Value, columns: pa.Schema, body: bytes) -> bytes:
    """A body as it is stored, in one line; raises `ValueError` if it is not of this kind."""
    if value == "bytes":
        return body
    kept = body.replace(b"\r", b" ").replace(b"\n", b" ") if value == "json" else body
    try:
        if kept != body:
            json.loads(body)  # a line break within a text is not JSON; a space would be
        found = PARSERS[value](pa.array([kept], pa.binary()), columns).num_rows
    except (pa.ArrowException, ValueError, RecursionError) as error:
        raise ValueError(f"the body is not {value}: {short_reason(error)}") from error
    if found != 1:
        raise ValueError(f"the body is not {value}: it is empty")
    return kept
