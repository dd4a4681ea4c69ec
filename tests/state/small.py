"""Limits so small that what happens to thousands of pieces happens to a few."""

from __future__ import annotations

import pytest

from clonos.state import large_pieces, pieces, runs, tiers


def few_pieces_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_APPENDED_MIN", 4)
    monkeypatch.setattr(runs, "BLOCK_BYTES", 200)
    monkeypatch.setattr(runs, "MERGED_BYTES", 600)
    monkeypatch.setattr(runs, "WRITTEN_ROWS", 3)
    monkeypatch.setattr(large_pieces, "WRITTEN_ROWS", 3)
    monkeypatch.setattr(large_pieces, "TOLD_BYTES", 300)
    monkeypatch.setattr(tiers, "TIERS_MAX", 2)
