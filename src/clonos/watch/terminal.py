"""Draws a snapshot in a terminal, with Rich."""

from __future__ import annotations

from typing import Any, Final

from clonos.extras import imported
from clonos.nodes.views import PARTS
from clonos.watch.phases import kind_of
from clonos.watch.snapshot import Healing, Snapshot, Task
from clonos.watch.words import costs, count, duration, kept, moment, size

STYLES: Final = {"live": "green", "finished": "bright_black", "busy": "yellow", "away": "red"}
COLOURS: Final = {
    "fence": "magenta", "logs": "blue", "slot": "bright_black", "restore": "yellow",
    "replay": "green",
}  # fmt: skip
BAR: Final = 30
"""Length of the longest recovery's bar, in characters."""
LEFT: Final = ("task", "phase")
COLUMNS: Final = (*LEFT, "rows/s", "latency", "logs", "state", "replay", "slot", "standby")
"""These fit into eighty characters if names are short; the page has more."""


def rich(module: str) -> Any:
    """Import a module of Rich; if it is not installed, the error says how to install it."""
    return imported(f"rich.{module}", extra="watch", where="clonos watch")


def terminal(job: Snapshot) -> Any:
    """The snapshot as an object that Rich can print."""
    text, group = rich("text").Text, rich("console").Group
    parts = [_head(job, text), *(text(f"! {said}", style="red") for said in job["warnings"])]
    parts += [text(""), _tasks(job)]
    for trial in job["trials"]:
        state = "runs" if trial["is_running"] else "is over"
        parts += [text(""), text.assemble((trial["what"], "bold"), f" {state}")]
        parts += [text(line) for line in trial["said"]]
    if job["recoveries"]:
        parts += [text(""), text("recoveries", style="bold"), _recoveries(job, text)]
    return group(*parts)


def _head(job: Snapshot, text: Any) -> Any:
    checkpoint = job["checkpoint"]
    age = "" if checkpoint["age_s"] is None else f" {duration(1000 * checkpoint['age_s'])} ago"
    delivered = ", ".join(f"{name} {count(rows)}" for name, rows in job["delivered"].items())
    lines = [
        [
            f"{count(job['rates'][-1] if job['rates'] else 0)} rows/s read",
            f"delivered: {delivered or 'nothing'}",
        ],
        [
            f"checkpoint #{checkpoint['id']}{age}, {size(checkpoint['state_bytes'])}",
            f"{job['recovered']} recoveries",
        ],
        [],
    ]
    if job["calls"]:
        paid = costs(job["costs"])
        lines[-1].append(f"{count(job['calls'])} calls answered{', ' * bool(paid)}{paid}")
    if (past := job["past"])["points"]:
        lines[-1].append(f"past since {moment(past['since'])}, {size(past['nbytes'])}")
    style = "yellow" if job["is_recovering"] else "green" if job["is_running"] else "bright_black"
    return text.assemble(
        (job["name"], "bold"),
        "  ",
        (job["status"], style),
        *(f"\n{' · '.join(facts)}" for facts in lines if facts),
    )


def _tasks(job: Snapshot) -> Any:
    table = rich("table").Table(
        box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bright_black"
    )
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in LEFT else "right", no_wrap=True)
    text = rich("text").Text
    for task in job["tasks"]:
        table.add_row(*_task(task, text))
    return table


def _task(task: Task, text: Any) -> list[Any]:
    return [
        text(task["name"]),  # as text, so that it is not taken for Rich's markup
        text(f"■ {task['phase']}", style=STYLES[kind_of(task["phase"])]),
        count(task["rows_per_s"]),
        duration(task["latency_ms"]),
        size(task["log_bytes"]),
        kept(task["state_bytes"], task["level"]),
        count(task["steps_to_replay"]),
        "-" if task["slot"] is None else str(task["slot"]),
        str(task["standbys"]),
    ]


def _recoveries(job: Snapshot, text: Any) -> Any:
    longest = max(sum(healing["ms"].values()) for healing in job["recoveries"]) or 1.0
    table = rich("table").Table(box=None, pad_edge=False, show_header=False)
    for healing in reversed(job["recoveries"]):
        table.add_row(text(healing["task"]), *_healing(healing, longest, text))
    legend = text.assemble(
        *(part for name in PARTS for part in (("■ ", COLOURS[name]), f"{name}  "))
    )
    newest = ", ".join(f"{n} {duration(ms)}" for n, ms in job["recoveries"][-1]["ms"].items())
    return rich("console").Group(table, legend, text(f"the newest: {newest}"))


def _healing(healing: Healing, longest: float, text: Any) -> list[Any]:
    bar, at, drawn = [], 0.0, 0
    for name, ms in healing["ms"].items():
        at += ms
        end = round(BAR * at / longest)
        bar.append(("█" * (end - drawn), COLOURS[name]))
        drawn = end
    return [text.assemble(*bar), duration(at) + ("" if healing["is_over"] else " so far")]
