"""Renderings: on a terminal, in a log, and as a picture."""

from __future__ import annotations

import io
import math

from rich.console import Console

from examples.demo.plot import Kill, Sample, plot
from examples.demo.timeline import (
    PHASES,
    Phase,
    Progress,
    ProgressView,
    Recovery,
    StandbyLine,
    TaskLine,
    render_progress,
    render_recovery,
)

RECOVERY = Recovery(
    "count[1]", "killed", "1.2", tuple(Phase(name, 2.0 * n) for n, name in enumerate(PHASES, 1))
)


def progress(phase="live", recoveries=()):
    tasks = [
        TaskLine("words[0]", "live", "1.0", 120_000.0, None, "slot-0"),
        TaskLine("count[1]", phase, "1.1", 90_000.0, 4.25, "slot-3"),
    ]
    return Progress(tasks, [StandbyLine("count[1]", "slot-4", 17)], recoveries)


def console(*, terminal):
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def text_of(used):
    assert isinstance(used.file, io.StringIO)
    return used.file.getvalue()


def test_a_recovery_shows_each_phase_and_the_total():
    used = console(terminal=False)
    used.print(render_recovery(RECOVERY))
    title, bar, legend = text_of(used).splitlines()
    assert "count[1] killed, live again as 1.2 after 42.0 ms" in title
    assert 38 <= len(bar.strip()) <= 44
    assert all(f"{phase.name} {phase.ms:.1f}" in legend for phase in RECOVERY.phases)


def test_an_empty_recovery_is_no_division_by_zero():
    used = console(terminal=False)
    used.print(render_recovery(Recovery("a[0]", "hung", "1.1", (Phase("other", 0.0),))))
    assert "0.0 ms" in text_of(used)


def test_the_panel_names_every_task_and_standby():
    used = console(terminal=True)
    used.print(render_progress(progress("replaying", [RECOVERY])))
    shown = text_of(used)
    for part in ("words[0]", "120,000", "replaying", "4.2 ms", "slot-4", "epoch 17", "42.0 ms"):
        assert part in shown


def test_a_terminal_gets_a_panel_that_changes_in_place():
    used = console(terminal=True)
    with ProgressView(used) as view:
        view.update(progress())
        view.update(progress("fenced"))
    assert "\x1b[" in text_of(used)
    assert "fenced" in text_of(used)


def test_a_log_gets_lines_only_when_there_is_news(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("examples.demo.timeline.time.monotonic", lambda: now)
    used = console(terminal=False)
    with ProgressView(used) as view:
        view.update(progress())
        view.update(progress())
        view.update(progress("fenced"))
        view.update(progress("live", [RECOVERY]))
        view.update(progress("live", [RECOVERY]))
        now += 2.5
        view.update(progress("live", [RECOVERY]))
    assert "\x1b" not in text_of(used)
    lines = text_of(used).splitlines()
    live = "2/2 tasks live, 1 standbys, 120,000 rows/s, latency 4.2 ms"
    assert lines[0] == live
    assert lines[1].startswith("1/2 tasks live (count[1] fenced)")
    assert lines[2].startswith("count[1] killed, live again as 1.2 after 42.0 ms (detected 2.0")
    assert lines[3:] == [live, live]


def samples(seconds=60):
    for n in range(seconds * 10):
        t = n / 10
        down = any(0 <= t - kill.t_kill < 0.3 for kill in KILLS)
        rows = 0.0 if down else 200_000 + 20_000 * math.sin(t)
        yield Sample(t, rows, None if down else 4 + math.cos(t))


KILLS = [
    Kill(12.0, "worker", 12.03),
    Kill(13.0, "worker and its standby", 13.9),
    Kill(14.0, "executor", 15.2),
    Kill(40.0, "driver", 44.0),
    Kill(58.0, "count[3]", None),
]


def test_the_picture_is_written_twice(tmp_path):
    png, svg = plot(list(samples()), KILLS, tmp_path / "run.v1", "Banned words, 5 kills")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.stat().st_size > 20_000
    assert b"<svg" in svg.read_bytes()[:1000]
    assert (png.name, svg.name) == ("run.v1.png", "run.v1.svg")


def test_many_kills_are_counted_and_none_is_fine(tmp_path):
    many = [Kill(float(n), "worker", n + 0.05) for n in range(40)]
    for kills in (many, []):
        png, _ = plot(list(samples(40)), kills, tmp_path / "run")
        assert png.stat().st_size > 10_000
    plot([], [], tmp_path / "empty")
    wide = [Sample(0.0, 0.0, 1.0), Sample(1.0, 0.0, 900.0)]
    plot(wide, [Kill(0.5, "worker", None)] * 13, tmp_path / "wide")
