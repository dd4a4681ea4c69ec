"""Caches of answers that several tasks and jobs share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from clonos.columns.urls import is_url
from clonos.errors import WrongType

_KINDS: Final = {
    "redis": "redis",
    "rediss": "redis",
    "postgres": "postgres",
    "postgresql": "postgres",
}


@dataclass(frozen=True, repr=False)
class Cache:
    """A store of answers for ``cache=``, shared by tasks, jobs and later runs.

    Parameters
    ----------
    url
        ``"redis://..."`` or ``"postgresql://..."``, where a table ``clonos_answers`` is created.
        Executors need ``pip install ".[redis]"`` or ``".[postgres]"``.
    name
        A namespace for questions: caches of the same name share answers. Choose a new name when the
        function is changed so that it answers differently.

    Raises
    ------
    WrongType
        The URL is of another kind, or the name is empty.

    Examples
    --------
    >>> Cache("redis://:secret@cache:6379/0", "judge 2")
    <answers of 'judge 2' in redis://cache:6379/0>
    """

    url: str
    name: str

    def __post_init__(self) -> None:
        name: object = self.name
        if not is_url(self.url, _KINDS):
            raise WrongType(
                "there is no such store of answers",
                where="Cache",
                remedy='write clonos.Cache("redis://host:6379/0", "name") or "postgresql://..."',
            )
        if not isinstance(name, str) or not name:
            raise WrongType(f"name={name!r}", where="Cache", remedy="give a name that is not empty")

    def __repr__(self) -> str:
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port else ""
        place = f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"
        return f"<answers of {self.name!r} in {place}>"

    @property
    def kind(self) -> str:
        """``"redis"`` or ``"postgres"``."""
        return _KINDS[urlsplit(self.url).scheme]


def require_cache(cache: object, cache_ttl: object, where: str) -> None:
    """Raise `WrongType` if a cache is invalid."""
    if cache is not None and (not isinstance(cache, Cache) or cache_ttl is None):
        raise WrongType(
            "cache= without cache_ttl=" if cache_ttl is None else f"cache={cache!r}",
            where=where,
            remedy='write cache=clonos.Cache("redis://...", "name"), cache_ttl="1 hour"',
        )
