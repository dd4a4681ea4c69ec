"""A snapshot as HTML, for the page, which is updated every second, and for notebooks.

Every name that a user may have chosen is escaped, in :func:`text`; nothing else reaches the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from clonos.nodes.views import PARTS
from clonos.watch.drawing import drawing, trend
from clonos.watch.phases import KINDS, kind_of
from clonos.watch.snapshot import Healing, Slot, Snapshot, Task, Trial
from clonos.watch.words import costs, count, duration, kept, moment, size

COLUMNS: Final = (
    "task", "phase", "rows/s", "rows in", "rows out", "latency", "backlog", "logs", "in memory",
    "state", "replay", "life", "slot", "standbys",
)  # fmt: skip


def text(what: object) -> str:
    """A user-chosen name, escaped for HTML."""
    return escape(str(what))


def style() -> str:
    """The style sheet of a picture."""
    return files(__package__).joinpath("style.css").read_text("utf-8")


def picture(job: Snapshot) -> str:
    """A job as HTML without scripts."""
    return "".join(
        (
            '<div class="clonos">',
            _head(job),
            "".join(f'<p class="warning">{text(said)}</p>' for said in job["warnings"]),
            _facts(job),
            '<div class="beside">',
            _panel("Graph", f'<div class="graph" data-keep="graph">{drawing(job)}</div>{LEGEND}'),
            _panel("Recoveries", _recoveries(job["recoveries"])),
            "</div>",
            _panel("Tasks", _tasks(job["tasks"])),
            _panel("Branches and canaries", _trials(job["trials"])) if job["trials"] else "",
            _panel("Processes", _slots(job["slots"])),
            "</div>",
        )
    )


def in_notebook(job: Snapshot) -> str:
    """The same, with its style sheet."""
    return f"<style>{style()}</style>{picture(job)}"


def _panel(title: str, content: str) -> str:
    return f'<section class="panel"><h2>{title}</h2>{content}</section>'


def _head(job: Snapshot) -> str:
    kind, word = "", "running"
    if not job["is_running"]:
        kind, word = "ended", "complete" if job["is_complete"] else "ended"
    elif job["is_recovering"]:
        kind, word = "busy", "recovering"
    restarts = f", start {job['term']}" if job["term"] > 1 else ""
    return (
        f'<header><h1>{text(job["name"])}</h1><span class="pill {kind}">{word}</span>'
        f'<span class="soft">{text(job["status"])}{restarts}</span></header>'
    )


def _facts(job: Snapshot) -> str:
    checkpoint = job["checkpoint"]
    age = f"{duration(1000 * checkpoint['age_s'])} ago" if checkpoint["age_s"] is not None else ""
    took = f", took {duration(checkpoint['duration_ms'])}" if checkpoint["duration_ms"] else ""
    latencies = [task["latency_ms"] for task in job["tasks"] if task["latency_ms"] is not None]
    held = sum(task["held_bytes"] for task in job["tasks"])
    out = ", ".join(f"{name} {count(rows)}" for name, rows in job["delivered"].items())
    dropped = sum(job["dropped"].values())
    facts = [
        (count(job["rates"][-1] if job["rates"] else 0), "rows/s read", trend(job["rates"])),
        (count(sum(job["delivered"].values())), "rows delivered", text(out)),
        (duration(max(latencies, default=None)) or "-", "longest latency", "in the last second"),
        (f"#{checkpoint['id']}", f"checkpoint {age}", f"{size(checkpoint['state_bytes'])}{took}"),
        (size(held), "logs and sent rows", "in memory, for recoveries"),
        (str(job["recovered"]), "recoveries", f"{dropped} rows dropped" if dropped else ""),
    ]
    if job["calls"]:
        paid = costs(job["costs"])
        facts.append((count(job["calls"]), "calls answered", text(paid)))
    if (past := job["past"])["points"]:
        since = f"since {moment(past['since'])}, {size(past['nbytes'])}"
        facts.append((count(past["points"]), "points of its past", since))
    return (
        '<div class="facts">'
        + "".join(
            f'<div class="fact"><b>{value}</b><span>{what}</span><span>{more}</span></div>'
            for value, what, more in facts
        )
        + "</div>"
    )


def dot(kind: str) -> str:
    """A small square in the colour of a phase or part."""
    return (
        '<svg width="9" height="9" aria-hidden="true">'
        f'<rect width="9" height="9" rx="2" class="{kind}"/></svg>'
    )


def _legend(names: Mapping[str, str]) -> str:
    """The legend of colours."""
    said = "".join(f"<span>{dot(kind)}{name}</span>" for kind, name in names.items())
    return f'<div class="legend">{said}</div>'


LEGEND: Final = _legend(KINDS)


def _recoveries(recoveries: Sequence[Healing]) -> str:
    if not recoveries:
        return '<div class="soft">none yet</div>'
    longest = max(sum(healing["ms"].values()) for healing in recoveries) or 1.0
    rows = "".join(_healing(healing, longest) for healing in reversed(recoveries))
    return f'<div class="healing">{rows}</div>{_legend({name: name for name in PARTS})}'


def _healing(healing: Healing, longest: float) -> str:
    bars, at = [], 0.0
    for name, ms in healing["ms"].items():
        said = f"<title>{name}: {duration(ms)}</title>"
        x, width = 100 * at / longest, 100 * ms / longest
        bars.append(
            f'<rect x="{x:.2f}%" width="{width:.2f}%" height="16" class="{name}">{said}</rect>'
        )
        at += ms
    end = f"{duration(at)}, {duration(1000 * healing['ago_s'])} ago"
    if not healing["is_over"]:
        end = f"{duration(at)} so far"
    return (
        f"<span>{text(healing['task'])}</span>"
        f'<svg width="100%" height="16" role="img" aria-label="{end}">{"".join(bars)}</svg>'
        f'<span class="soft">{end}</span>'
    )


def _trials(trials: Sequence[Trial]) -> str:
    cards = []
    for trial in trials:
        state = "runs" if trial["is_running"] else "is over"
        said = "".join(f"<br>{text(line)}" for line in trial["said"])
        what = f'{text(trial["what"])} <span class="soft">{state}</span>'
        cards.append(f"<div>{what}{said}</div>")
    return f'<div class="slots wide scroll" data-keep="trials">{"".join(cards)}</div>'


def _slots(slots: Sequence[Slot]) -> str:
    if not slots:
        return '<div class="soft">none has come yet</div>'
    cards = []
    for slot in sorted(slots, key=lambda slot: slot["place"]):
        runs = ", ".join(slot["runs"]) or "no task"
        keeps = f'<br><span class="soft">standby of {text(", ".join(slot["keeps"]))}</span>'
        where = f"slot {slot['place']} · pid {slot['pid']} · executor {slot['executor']}"
        cards.append(
            f'<div><span class="soft">{text(where)}</span><br>{text(runs)}'
            f"{keeps if slot['keeps'] else ''}</div>"
        )
    return f'<div class="slots scroll" data-keep="slots">{"".join(cards)}</div>'


def _tasks(tasks: Sequence[Task]) -> str:
    head = "".join(
        f'<th class="phase">{name}</th>' if name == "phase" else f"<th>{name}</th>"
        for name in COLUMNS
    )
    rows = "".join(f"<tr>{_task(task)}</tr>" for task in tasks)
    return (
        f'<div class="scroll" data-keep="tasks"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _task(task: Task) -> str:
    phase = f'<td class="phase">{dot(kind_of(task["phase"]))}{text(task["phase"])}</td>'
    slot = "-" if task["slot"] is None else task["slot"]
    cells = [
        count(task["rows_per_s"]),
        count(task["rows_in"]),
        count(task["rows_out"]),
        duration(task["latency_ms"]),
        size(task["backlog_bytes"]),
        size(task["log_bytes"]),
        size(task["held_bytes"]),
        kept(task["state_bytes"], task["level"]),
        count(task["steps_to_replay"]),
        task["incarnation"],
        slot,
        task["standbys"],
    ]
    return f"<td>{text(task['name'])}</td>{phase}" + "".join(f"<td>{text(c)}</td>" for c in cells)
