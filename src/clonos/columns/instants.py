"""Moments, as milliseconds since the epoch and as datetimes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def from_ms(ms: int) -> datetime:
    """Milliseconds since the epoch as a datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)


def to_ms(instant: datetime | int) -> int:
    """A datetime (UTC if it has no zone) as milliseconds since the epoch, rounded up."""
    if isinstance(instant, int):
        return instant
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=timezone.utc)
    return -((_EPOCH - instant) // timedelta(milliseconds=1))
