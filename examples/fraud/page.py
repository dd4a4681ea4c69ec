"""A page about a run: what the model made of each payment, what was done meanwhile, the bill."""

from __future__ import annotations

import io
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import clonos
from examples.fraud import pipeline
from examples.fraud.payments import Payment
from examples.fraud.verdict import Journal, Rows, quality
from examples.judging import Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HONEST, THEFT, JOB, BRANCH, KILL = "#9aa5b1", "#c0152f", "#1f5a93", "#b45309", "#c0152f"
BUCKET_S: Final = 0.5
SHOWN: Final = 8
ABOUT: Final = (
    "A day of card payments. A paid model, which never says the same twice, scores each of them; "
    "above 0.8 the card is blocked. At noon another prompt is tried on the morning, and adopted."
)
VERDICT: Final = (
    "The verdict: against a computation without changes and failures, and against the model's own "
    "journal"
)
STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;max-width:1040px;margin:2em auto;
padding:0 1em}h1{font-size:1.5em;margin:0}
h2{font-size:1.05em;margin:2em 0 .5em}p{margin:.4em 0 1em;color:#52606d}
.tiles{display:flex;gap:1em;margin:1.2em 0}.tile{flex:1;border:1px solid #e4e7eb;border-radius:8px;
padding:.7em 1em}.tile b{display:block;font-size:1.5em;color:#1f5a93}.tile.old b{color:#52606d}
table{border-collapse:collapse;width:100%;font-size:.92em}td,th{text-align:left;padding:.3em .7em;
border-bottom:1px solid #e4e7eb}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.ok{color:#0a7d33}.FAULT{color:#c0152f;font-weight:bold}.theft{color:#c0152f}svg{width:100%;height:auto}
"""


class Happened(NamedTuple):
    """Something that was done to the job, from when to when (s since the epoch)."""

    what: str
    began: float
    ended: float


class Seen(NamedTuple):
    """What was seen of a run.

    Attributes
    ----------
    sent_at
        When each payment was taken.
    samples
        How many had been scored, at which times.
    branched_by
        The process in which the branch asked.
    """

    payments: Sequence[Payment]
    rows: Rows
    journal: Journal
    sent_at: Sequence[float]
    samples: Sequence[tuple[float, int]]
    marks: Sequence[Happened]
    branched_by: int


def write(path: Path, seen: Seen, branch: clonos.Branch, lines: Sequence[Line]) -> None:
    """Make the page."""
    parts = [
        "<!doctype html><meta charset='utf-8'><title>A prompt is changed</title>",
        f"<style>{STYLE}</style><h1>A prompt is changed while the job runs</h1>",
        f"<p>{ABOUT}</p>",
        _tiles(seen, branch),
        picture(seen, branch),
        "<h2>What the other prompt changes, in the branch</h2>",
        _difference(seen, branch),
        "<h2>Who answered the branch</h2>",
        _bill(branch),
        f"<h2>{VERDICT}</h2>",
        _table(
            ("what", "found", "must be", ""),
            ((line.what, _short(line.found), *_judged(line)) for line in lines),
        ),
    ]
    path.write_text("".join(parts), "utf-8")


def _judged(line: Line) -> tuple[str, str]:
    if line.wanted is None:
        return "", ""
    word = "ok" if line.ok else "FAULT"
    return _short(line.wanted), f"<span class='{word}'>{word}</span>"


def _tiles(seen: Seen, branch: clonos.Branch) -> str:
    adopted = next(mark.ended for mark in seen.marks if mark.what == "adopt")
    behind = [row for row in seen.rows if seen.sent_at[row["id"]] > adopted]
    found = []
    for kind, what, rows in (
        ("old", "the morning, as it was", branch.job_rows("scored").to_pylist()),
        ("", "the morning, in the branch", branch.rows("scored").to_pylist()),
        ("", "the afternoon, after the adoption", behind),
    ):
        thefts, caught, alarms = quality(rows, seen.payments)
        found.append(
            f"<div class='tile {kind}'>{what}<b>{caught} of {thefts} thefts seen</b>"
            f"{alarms} false alarms, {len(rows)} payments</div>"
        )
    return f"<div class='tiles'>{''.join(found)}</div>"


def _difference(seen: Seen, branch: clonos.Branch) -> str:
    difference = branch.compare("scored", keys=["id"])
    changed = [row for row in difference.table.to_pylist() if row["change"] == "changed"]
    changed.sort(key=lambda row: abs(row["score_a"] - row["score_b"]), reverse=True)
    head = ("payment", "card", "EUR", "in", "score", "in the branch", "in truth")
    shown = []
    for row in changed[:SHOWN]:
        truth = "<span class='theft'>theft</span>" if seen.payments[row["id"]].fraud else "honest"
        euros, scores = f"{row['cents_a'] / 100:.2f}", (f"{row[f'score_{x}']:.2f}" for x in "ab")
        shown.append((row["id"], row["card_a"], euros, row["country_a"], *scores, truth))
    said = f"{difference.count('changed')} of {difference.rows_a} payments are scored anew; these "
    return f"<p>{said}differ most.</p>{_table(head, shown)}"


def _bill(branch: clonos.Branch) -> str:
    head = ("operator", "function", "from the log", "stand-in", "asked", "ms", "cents")
    return _table(
        head,
        (
            (line["operator"], line["function"], line["matched"], line["stubbed"], line["live"],
             line["ms"], f"{line['cost']:.2f}")
            for line in branch.bill.to_pylist()
        ),
    )  # fmt: skip


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Cells that begin with a tag are HTML."""
    made = "".join(f"<th>{escape(word)}</th>" for word in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{made}</tr>{body}</table>"


def _cell(text: str) -> str:
    return text if text.startswith("<span") else escape(text)


def _short(what: Any) -> str:
    return f"{len(what)} cards" if isinstance(what, list) else str(what)


# --- the picture ----------------------------------------------------------------------------------


def picture(seen: Seen, branch: clonos.Branch) -> str:
    """As SVG: every score, the rates, and the money, over the time of the run."""
    # Figure without pyplot: no display, no global state, and nothing to close.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 9.5), layout="constrained")
    FigureCanvasAgg(figure)
    job, again, rate, money = figure.subplots(4, 1, sharex=True, height_ratios=(4, 3, 2, 2))
    _scores(job, seen, seen.rows, "the job: score of each payment")
    _scores(again, seen, branch.rows("scored").to_pylist(), "the branch: the morning once more")
    _rates(rate, seen)
    _money(money, seen)
    for axes in (job, again, rate, money):
        _marks(axes, seen)
        axes.grid(visible=True, axis="y", color="#e5e7eb", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    _name_marks(job, seen)
    money.set_xlabel("seconds of the run")
    _hours(again, seen)
    file = io.StringIO()
    figure.savefig(file, format="svg")
    return file.getvalue()[file.getvalue().index("<svg") :]


def _scores(axes: Axes, seen: Seen, rows: Rows, title: str) -> None:
    begin = seen.sent_at[0]
    frauds = {one.id for one in seen.payments if one.fraud}
    for is_theft, color, size, label in ((False, HONEST, 9, "honest"), (True, THEFT, 26, "theft")):
        found = [row for row in rows if (row["id"] in frauds) == is_theft]
        axes.scatter(
            [seen.sent_at[row["id"]] - begin for row in found],
            [row["score"] for row in found],
            s=size, color=color, alpha=0.85, linewidths=0, label=label, zorder=2 + is_theft,
        )  # fmt: skip
    axes.axhline(pipeline.SURE, color="#52606d", linewidth=0.8, linestyle="--")
    pad = 30 if rows is seen.rows else 16  # what happened is named above the first
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=pad)
    axes.set_ylim(-0.03, 1.03)
    axes.legend(loc="center right", frameon=True, fontsize=8)


def _rates(axes: Axes, seen: Seen) -> None:
    begin, end = seen.sent_at[0], seen.samples[-1][0]
    times = [at for at, _ in seen.samples]
    marks = [begin + BUCKET_S * n for n in range(int((end - begin) / BUCKET_S) + 1)]

    def scored(at: float) -> int:
        place = bisect_right(times, at)
        return seen.samples[place - 1][1] if place else 0

    x = [at - begin for at in marks]
    waiting = [bisect_left(seen.sent_at, at) - scored(at) for at in marks]
    axes.fill_between(x, waiting, step="post", color=BRANCH, alpha=0.35, linewidth=0)
    axes.set_title("payments that wait for their score", loc="left", fontsize=10, fontweight="bold")
    axes.set_ylim(bottom=0)


def _money(axes: Axes, seen: Seen) -> None:
    begin = seen.sent_at[0]
    for is_branch, color, label in ((False, JOB, "job"), (True, BRANCH, "branch")):
        x, y = [0.0], [0.0]
        for one in seen.journal.scores().values():
            if one.answer is not None and (one.asker == seen.branched_by) == is_branch:
                x.append(one.at - begin)
                y.append(y[-1] + pipeline.price(one.answer))
        axes.step(x, y, where="post", color=color, linewidth=1.6, label=label)
        axes.annotate(
            f"{label}: {y[-1]:.0f} cents", (x[-1], y[-1]), textcoords="offset points",
            xytext=(4, -3), fontsize=8, color=color, annotation_clip=False,
        )  # fmt: skip
    title = "cents that the model has charged"
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
    axes.set_ylim(bottom=0)


def _marks(axes: Axes, seen: Seen) -> None:
    begin = seen.sent_at[0]
    for what, began, ended in seen.marks:
        if what == "kill":
            axes.axvline(began - begin, color=KILL, linewidth=1.2)
        else:
            color = BRANCH if what == "branch" else JOB
            axes.axvspan(began - begin, ended - begin, color=color, alpha=0.10, linewidth=0)


def _name_marks(axes: Axes, seen: Seen) -> None:
    begin = seen.sent_at[0]
    words = {"double": "2 to 4 tasks", "kill": "kill -9"}
    for what, began, _ in seen.marks:
        is_kill = what == "kill"
        axes.annotate(
            words.get(what, what), (began - begin, 1.03 if is_kill else 1.1),
            xycoords=("data", "axes fraction"), fontsize=8, color=KILL if is_kill else "#1f2933",
            annotation_clip=False,
        )  # fmt: skip


def _hours(axes: Axes, seen: Seen) -> None:
    """The hour of the day at which each second of the run was."""
    begin = seen.sent_at[0]
    at_s = [payment.at_s for payment in seen.payments]
    hours = [hour for hour in range(0, 24, 3) if at_s[0] <= hour * 3600 <= at_s[-1]]
    places = [seen.sent_at[bisect_left(at_s, hour * 3600)] - begin for hour in hours]
    above = axes.secondary_xaxis("top")
    above.set_xticks(places, [f"{hour}:00" for hour in hours], fontsize=8)
    above.tick_params(length=2, pad=1)
