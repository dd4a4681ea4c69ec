"""Where slots spend their time: every slot's loop under cProfile, summed up in one text."""

from __future__ import annotations

import contextlib
import io
import pstats
from pathlib import Path
from typing import Final

from clonos.runtime.shipment import PROFILE_VARIABLE as VARIABLE

TOP: Final = 25
"""How many functions are listed."""

__all__ = ["VARIABLE", "clear", "write_text"]


def clear(raw: Path) -> None:
    """Remove the profiles of earlier runs."""
    raw.mkdir(parents=True, exist_ok=True)
    for path in raw.glob("*.prof"):
        path.unlink()


def write_text(raw: Path, text: Path) -> None:
    """All slots together, then each by itself: the functions with most time of their own."""
    paths = sorted(raw.glob("*.prof"))
    out = io.StringIO()
    with contextlib.suppress(TypeError):  # a profile without a single call
        if paths:
            out.write(f"=== all {len(paths)} slots\n")
            _write(out, [str(path) for path in paths])
    for path in paths:
        with contextlib.suppress(TypeError):
            out.write(f"=== {path.stem}\n")
            _write(out, [str(path)])
    text.write_text(out.getvalue() or "no slot has left a profile\n", "utf-8")


def _write(out: io.StringIO, paths: list[str]) -> None:
    stats = pstats.Stats(*paths, stream=out)
    stats.sort_stats("tottime").print_stats(TOP)
