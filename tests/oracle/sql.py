"""Programs in SQL, as DuckDB computes them: the rows of the sources are ``l`` and ``r``."""

from __future__ import annotations

import re
from collections.abc import Iterable

MACROS = """
    create macro pmod(a, b) as (a % b + b) % b;
    create macro ms(t) as (epoch_us(t) - pmod(epoch_us(t), 1000)) // 1000;
    create macro instant(ms) as epoch_ms(ms) at time zone 'UTC';
    create macro required(ms) as coalesce(ms, error('no event time'));
"""
AGGREGATES = {
    "n": "count(*)", "nf": "count(f)", "sx": "sum(x)", "sf": "sum(f)", "sr": "sum(r::double)",
    "sd": "sum(d)", "ax": "sum(x)::double / count(x)", "af": "sum(f) / count(f)",
    "lf": "min(f) + 0.0", "hf": "max(f) + 0.0", "lk": "min(k)", "ht": "max(t)", "ld": "min(d)",
    "sg": "sum(g)",
}  # fmt: skip
"""Without the average of decimals, which is a double there."""
UNITS = {"ms": 1, "seconds": 1000}
BOUNDS = "instant(s) as window_start, instant(e) as window_end"


def join(condition: str, how: str) -> str:
    """A join of the two sources."""
    if how in ("left_semi", "anti"):
        is_there = f"exists (select 1 from r where {condition})"
        chosen = is_there if how == "left_semi" else f"not {is_there}"
        return f"select * from (select * from l where {chosen})"
    kind = how.removesuffix("_outer")
    return f"select * from (select l.*, r.* from l {kind} join r on {condition})"


def _windowed(window: str, keys: list[str]) -> str:
    """The rows of the source, once for each window that they are in, with its bounds in ms."""
    timed = "select *, required(ms(t)) as event from l"
    lengths = [int(n) * UNITS[unit] for n, unit in re.findall(r'"(\d+) (\w+)"', window)]
    if "between" in window:
        return f"select *, event as s, ms(u) as e from ({timed})"
    size, slide = lengths[0], lengths[-1]
    if "session" not in window:
        return f"""
            select *, event - pmod(event, {slide}) - back * {slide} as s, s + {size} as e
            from ({timed}), range({-(-size // slide)}) as r(back) where s + {size} > event"""
    parts = f"partition by {', '.join(keys)}"
    return f"""
        select *, min(event) over whole as s, max(event) over whole + {size} as e from (
            select *, sum(is_new) over (
                {parts} order by event range unbounded preceding
            ) as session from (
                select *, lag(event, 1, event) over ({parts} order by event) as before,
                    (event - before > {size})::int as is_new
                from ({timed})
            )
        ) window whole as ({parts}, session)"""


def rows_of_windows(window: str, keys: Iterable[str], ranking: str = "") -> str:
    """All rows of each window, or the first ones."""
    keys = _keys(keys)
    sql = f"""
        select id, k, g, x, f, r, d, t, u, {BOUNDS} from ({_windowed(window, keys)})"""
    return f"{sql} qualify {_first(ranking, [*keys, 's', 'e'])}" if ranking else sql


def aggregates(window: str, keys: Iterable[str], names: Iterable[str]) -> str:
    """A row per key and window; empty if SQL has not all of the aggregates."""
    if not AGGREGATES.keys() >= set(names):
        return ""
    keys = _keys(keys)
    made = ", ".join([*keys, BOUNDS, *(f"{AGGREGATES[name]} as {name}" for name in names)])
    by = ", ".join([*keys, "s", "e"])
    return f"select {made} from ({_windowed(window, keys)}) group by {by}"


def most(sql: str, condition: str) -> str:
    """Of rows with a count `n`, those with the greatest of each window."""
    where = f" where {condition}" if condition else ""
    first = _first('1, "n", ties=True', ["window_start", "window_end"])
    return f"select * from ({sql}){where} qualify {first}"


def _first(ranking: str, parts: list[str]) -> str:
    """What ``top(...)`` keeps; without ties its last column is unique."""
    number = ranking.partition(",")[0]
    by = [
        f"{name} {'asc' if is_ascending else 'desc'} nulls last"
        for is_ascending, name in re.findall(r'(clonos\.asc\()?"(\w+)"', ranking)
    ]
    over = f"partition by {', '.join(parts)} order by {', '.join(by)}"
    return f"rank() over ({over}) <= {number}"


def _keys(names: Iterable[str]) -> list[str]:
    return [f"{name} + 0.0" if name == "f" else name for name in names]  # 0.0 and -0.0 are one
