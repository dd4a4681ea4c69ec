"""Answers that tasks and jobs share: a store is asked before the service.

The store only saves calls. If it is away or slow, the service is asked after a moment. An answer
from the store is an outcome and logged, so no replay asks the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol

from clonos.blame import in_short
from clonos.extras import imported
from clonos.operators.calls.cache import Cache

LOGGER: Final = logging.getLogger("clonos")

STORE_S: Final = 2.0
"""A store that takes longer is away ..."""
AWAY_S: Final = 10.0
"""... and is not asked again for this long."""
CLEAN_S: Final = 600.0
"""How often expired answers are deleted."""

_TABLE: Final = """
create table if not exists clonos_answers (
    question bytea primary key, answer bytea not null, until timestamptz not null)
"""
_FIND: Final = """
select question, answer, extract(epoch from until - now())::float8 from clonos_answers
where question = any(%s) and until > now()
"""
_KEEP: Final = """
insert into clonos_answers values (%s, %s, now() + make_interval(secs => %s))
on conflict (question) do update set answer = excluded.answer, until = excluded.until
"""
_CLEAN: Final = "delete from clonos_answers where until <= now()"
_LOCK: Final = "select pg_advisory_lock(7161023)"


class Known(NamedTuple):
    """An answer, and how much longer it is good."""

    answer: bytes
    left_s: float


class Store(Protocol):
    """A place for answers; any exception means that it is away."""

    async def find(self, questions: Sequence[bytes]) -> dict[bytes, Known]: ...
    async def keep(self, answers: dict[bytes, bytes], ttl_s: float) -> None: ...
    async def close(self) -> None: ...


class SharedAnswers:
    """One store, asked many questions at a time. Used only in the event loop of the calls."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._store: Store | None = None
        self._wanted: dict[bytes, asyncio.Future[Known | None]] = {}
        self._new: dict[bytes, bytes] = {}
        self._ttl_s = 0.0
        self._working: asyncio.Future[None] | None = None
        self._away_until_s = 0.0
        self._is_closed = False

    def _named(self, question: bytes) -> bytes:
        name = self._cache.name.encode()
        return blake2b(b"%d:%b%b" % (len(name), name, question), digest_size=20).digest()

    async def find(self, question: bytes) -> Known | None:
        """The answer, if the store has it; questions of one turn are asked together."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._away_until_s:
            return None
        named = self._named(question)
        if named not in self._wanted:
            self._wanted[named] = loop.create_future()
        self._work()
        return await asyncio.shield(self._wanted[named])

    def keep(self, question: bytes, answer: bytes, ttl_s: float) -> None:
        """The service has answered: keep the answer in the store. Nobody waits for that."""
        if asyncio.get_running_loop().time() >= self._away_until_s:
            self._new[self._named(question)] = answer
            self._ttl_s = ttl_s
            self._work()

    def _work(self) -> None:
        if self._working is None or self._working.done():
            self._working = asyncio.ensure_future(self._run())
            self._working.add_done_callback(lambda _: self._work_on())

    def _work_on(self) -> None:
        """User code may have cancelled the work, as it can cancel all tasks."""
        if not self._is_closed and (self._wanted or self._new):
            self._work()

    async def _run(self) -> None:
        await asyncio.sleep(0)  # gather all questions of this turn
        while self._wanted or self._new:
            wanted, self._wanted = self._wanted, {}
            new, self._new = self._new, {}
            known: dict[bytes, Known] = {}
            try:
                if wanted:
                    known = await self._try("find", tuple(wanted)) or {}
            finally:  # nobody waits for what was cancelled
                for named, waiting in wanted.items():
                    if not waiting.done():
                        waiting.set_result(known.get(named))
            if new:
                await self._try("keep", new, self._ttl_s)

    async def _try(self, what: str, *arguments: Any) -> Any:
        """What the store returns; None: it is away."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._away_until_s:
            return None
        try:
            if self._store is None:
                self._store = _STORES[self._cache.kind](self._cache.url)
            return await asyncio.wait_for(getattr(self._store, what)(*arguments), STORE_S)
        except Exception as error:  # noqa: BLE001 - after any error, the service is asked
            self._away_until_s = loop.time() + AWAY_S
            LOGGER.warning(
                "%r: %s. Services are asked meanwhile; it is tried again in %g s.",
                self._cache,
                type(error).__name__ if isinstance(error, TimeoutError) else in_short(error),
                AWAY_S,
            )
            await self._forget()
            return None

    async def _forget(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                await asyncio.wait_for(store.close(), STORE_S)
            except Exception:  # noqa: BLE001 - it is away
                return

    async def close(self) -> None:
        """The loop ends: keep the newest answers if that does not take long."""
        self._is_closed = True
        if self._working is not None and not self._working.done():
            await asyncio.wait([self._working], timeout=STORE_S / 2)
            self._working.cancel()
        await self._forget()


class _Redis:
    def __init__(self, url: str) -> None:
        redis = imported("redis.asyncio", extra="redis", where="cache")
        self._client: Any = redis.from_url(url, socket_timeout=STORE_S)

    async def find(self, questions: Sequence[bytes]) -> dict[bytes, Known]:
        pipe = self._client.pipeline(transaction=False)
        for question in questions:
            name = _redis_key(question)
            pipe.get(name)
            pipe.pttl(name)
        said = await pipe.execute()
        pairs = zip(questions, said[::2], said[1::2], strict=True)
        return {q: Known(a, max(ms, 0) / 1000) for q, a, ms in pairs if a is not None}

    async def keep(self, answers: dict[bytes, bytes], ttl_s: float) -> None:
        pipe = self._client.pipeline(transaction=False)
        for question, answer in answers.items():
            pipe.set(_redis_key(question), answer, px=max(round(1000 * ttl_s), 1))
        await pipe.execute()

    async def close(self) -> None:
        await self._client.aclose()


def _redis_key(question: bytes) -> bytes:
    return b"clonos:answer:" + question.hex().encode()


class _Postgres:
    def __init__(self, url: str) -> None:
        self._psycopg: Any = imported("psycopg", extra="postgres", where="cache")
        self._url = url
        self._connection: Any = None
        self._clean_at_s = 0.0

    async def _open(self) -> Any:
        if self._connection is None:
            connection = await self._psycopg.AsyncConnection.connect(
                self._url, autocommit=True, application_name="clonos answers"
            )
            await connection.execute(_LOCK)  # "if not exists" is no help against a race
            await connection.execute(_TABLE)
            await connection.execute("select pg_advisory_unlock_all()")
            self._connection = connection
        return self._connection

    async def find(self, questions: Sequence[bytes]) -> dict[bytes, Known]:
        connection = await self._open()
        rows = await (await connection.execute(_FIND, [list(questions)])).fetchall()
        return {bytes(question): Known(bytes(answer), left_s) for question, answer, left_s in rows}

    async def keep(self, answers: dict[bytes, bytes], ttl_s: float) -> None:
        connection = await self._open()
        async with connection.cursor() as cursor:
            rows = [(question, answers[question], ttl_s) for question in sorted(answers)]
            await cursor.executemany(_KEEP, rows)
        now = asyncio.get_running_loop().time()
        if now >= self._clean_at_s:
            self._clean_at_s = now + CLEAN_S
            await connection.execute(_CLEAN)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


_STORES: Final[dict[str, Callable[[str], Store]]] = {"redis": _Redis, "postgres": _Postgres}
