"""Connections to servers that may freeze.

The kernel of a frozen server goes on, so TCP finds nothing wrong with it; and an answer may take
minutes, so that it does not come says little. But a server that lives lets another connection in.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

from psycopg import Connection, OperationalError
from psycopg.conninfo import make_conninfo
from psycopg.errors import ConnectionTimeout, Error

T = TypeVar("T")
_Waiting = Generator[Any, Any, T]


class Watched(Connection[Any]):
    """A connection that ends itself if its server is frozen.

    Attributes
    ----------
    look_s
        After so long without a word from the server, and then again and again, it is asked by
        another connection whether it lets anybody in.
    answer_s
        After so long the connection ends anyway: a session may be frozen without its server, when
        it waits for a disk that does not answer.
    """

    look_s = answer_s = float("inf")

    def wait(self, gen: _Waiting[T], *args: Any, **options: Any) -> T:
        """Everything that the server is asked waits here for its answer."""
        return super().wait(self._watched(gen), *args, **options)

    def _watched(self, gen: _Waiting[T]) -> _Waiting[T]:
        since = looked = time.monotonic()
        ready = None
        while True:
            try:
                wanted = gen.send(ready)
            except StopIteration as end:
                result: T = end.value
                return result
            ready = yield wanted
            now = time.monotonic()
            if ready:
                since = looked = now
                continue
            is_over = now - since >= self.answer_s
            if not is_over and now - looked >= self.look_s:
                is_over = not self._lets_in()
                looked = time.monotonic()
            if is_over:
                self.close()
                raise OperationalError(f"no answer for {time.monotonic() - since:.0f} s")

    def _lets_in(self) -> bool:
        """Whether the server says anything at all, be it that there are too many connections."""
        try:
            Connection.connect(make_conninfo(self.info.dsn, password=self.info.password)).close()
        except ConnectionTimeout:
            return False
        except Error:
            return True
        return True
