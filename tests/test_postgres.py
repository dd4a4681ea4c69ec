"""Addresses of PostgreSQL servers: what of them is told."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from clonos.errors import DefinitionError
from clonos.postgres import Server

pytest.importorskip("psycopg")


@pytest.mark.parametrize(
    "password", ["hunter/two", "12/hunter", "hunter@two", "1?hunter@two", "hunter/t@wo"]
)
def test_a_password_that_is_not_escaped_is_taken_for_no_place(password):
    """Its rest would be the host, the port or the database, which errors name."""
    with pytest.raises(DefinitionError, match="cannot be understood") as caught:
        repr(Server(f"postgresql://me:{password}@db.example/shop"))
    assert "%2F" in caught.value.remedy
    assert "hunter" not in f"{caught.value} {caught.value.__context__!r}"
    escaped = Server(f"postgresql://me:{quote(password, safe='')}@db.example/shop")
    assert repr(escaped) == "<PostgreSQL at db.example:5432/shop>"


@pytest.mark.parametrize(
    ("dsn", "place"),
    [
        ("postgresql://me@a,b:5433/shop", "a,b:,5433/shop"),
        ("postgresql:///shop?host=/run/sock", "/run/sock:5432/shop"),
        ("postgresql://me@db/a%40b", "db:5432/a@b"),
        ("host=@abstract dbname=shop password=x://y/z@w", "@abstract:5432/shop"),
    ],
)
def test_what_else_libpq_takes_is_understood(dsn, place):
    assert Server(dsn).place == place
