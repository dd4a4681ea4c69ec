"""Files without a name on a slot's local disk."""

from __future__ import annotations

import logging

from clonos.runtime.shelf import LocalShelf


def test_a_write_that_fails_in_whatever_way_is_over(caplog):
    shelf = LocalShelf()

    def wrong(_):
        raise ValueError("a bug")

    with caplog.at_level(logging.WARNING, "clonos"):
        orders = [shelf.write(fill, is_long=False) for fill in (wrong, lambda f: f.write(b"abc"))]
        shelf._short.shutdown(wait=True)
    assert [order.failed for order in orders] == [True, False]
    assert orders[1].content is not None
    assert "a bug" in caplog.text
    assert "Traceback" in caplog.text
