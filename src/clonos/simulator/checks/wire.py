"""Invariants of the bytes between processes."""

from __future__ import annotations

from clonos.simulator.checks.violations import require


def arrives_as_sent(sent: bytes | None, came: bytes) -> None:
    """A stream delivers what was sent on it: in order, without a gap, bit by bit."""
    require(sent is not None, "faithful wire", "something arrives that was never sent")
    require(sent == came, "faithful wire", "something else arrives than was sent next")


def comes_from_the_job(is_strange: bool) -> None:
    """A process without the job's secret is never heard."""
    require(not is_strange, "no strangers", "a stranger was let in")
