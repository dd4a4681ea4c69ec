"""Latency over time around kills: one rule for systems that deliver often and seldom."""

from __future__ import annotations

import json
import math

import pytest

from clonos.errors import WrongType
from clonos_bench import plots
from clonos_bench.timelines import Timeline


def steady(every_s, late_ms, pauses=(), seconds=60.0):
    """Deliveries at a steady pace; in a pause there are none, and then what waited comes late."""
    points = []
    for i in range(int(seconds / every_s)):
        at_s = i * every_s
        if any(start < at_s < end for start, end in pauses):
            continue
        ends = [end for _, end in pauses if end <= at_s < end + every_s]
        points.append((at_s, late_ms + (500.0 if ends else 0.0)))
    return points


def test_gap_and_return_of_a_system_that_delivers_often():
    timeline = Timeline("a", "3", 50_000.0, steady(0.01, 5.0, [(20, 20.4), (30, 31)]), [20, 30])
    first, second = timeline.effects()
    assert first.gap_ms == pytest.approx(390, abs=15)
    assert second.gap_ms == pytest.approx(990, abs=15)
    assert timeline.usual_ms == 5.0
    assert 400 <= first.normal_ms <= 450


def test_gap_and_return_of_a_system_that_delivers_seldom():
    timeline = Timeline("b", "3", 50_000.0, steady(0.5, 900.0, [(20, 26)]), [20.1])
    (found,) = timeline.effects()
    assert found.gap_ms == pytest.approx(5500, abs=510)
    assert timeline.usual_ms == 900.0
    assert 6000 <= found.normal_ms <= 7000


def test_a_stall_just_before_a_kill_does_not_set_the_limit():
    points = [(at, 300.0 if 19.5 < at < 20 or 20 < at < 21 else 5.0) for at, _ in steady(0.01, 5.0)]
    timeline = Timeline("a", "3", 1.0, points, [20.0])
    assert timeline.usual_ms == 5.0
    assert timeline.effects()[0].normal_ms == pytest.approx(1000, abs=15)


def test_what_follows_a_kill_until_latency_is_back_is_not_usual():
    kills = [10.0 + 5 * i for i in range(8)]
    points = [
        (at, 80.0 if any(0 <= at - kill < 2 for kill in kills) else 5.0 + at / 1000)
        for at, _ in steady(0.01, 5.0)
    ]
    timeline = Timeline("a", "3", 1.0, points, kills)
    assert 5.0 < timeline.usual_ms < 5.1
    assert max(timeline.quiet()) < 6.0
    assert all(effect.normal_ms == pytest.approx(2000, abs=15) for effect in timeline.effects())


def test_pauses_that_begin_later_are_due_to_something_else_in_every_system():
    late = Timeline("a", "3", 1.0, steady(0.01, 5.0, [(20, 20.4), (22.5, 29)]), [20.0])
    assert late.effects()[0].gap_ms == pytest.approx(390, abs=15)
    soon = Timeline("a", "3", 1.0, steady(0.01, 5.0, [(20, 20.4), (21.5, 29)]), [20.0])
    assert soon.effects()[0].gap_ms == pytest.approx(7490, abs=15)


def test_nothing_after_the_kill_is_infinitely_late():
    timeline = Timeline("c", "3", 1.0, steady(0.01, 5.0, seconds=10), [10.5])
    (found,) = timeline.effects()
    assert math.isinf(found.gap_ms)
    assert math.isinf(found.normal_ms)


def test_a_timeline_is_written_and_read(tmp_path):
    timeline = Timeline("d", "8", 2.0, [(1.0, 2.5), (2.0, 3.5)], [1.5], {"cores": 2})
    path = timeline.save(tmp_path, "q8-d")
    assert path.name == "q8-d.timeline.json"
    assert Timeline.load(path) == timeline
    shape = json.loads(path.read_text("utf-8"))
    assert shape["latency"] == [[1.0, 2.5], [2.0, 3.5]]
    assert shape["kills"] == [1.5]


def test_what_is_no_timeline_is_refused(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"system": "x"}', "utf-8")
    with pytest.raises(WrongType, match="no timeline"):
        Timeline.load(path)


def test_systems_are_drawn_side_by_side(tmp_path):
    lines = [Timeline(n, "3", 1.0, steady(0.1, 5.0), [20.0]) for n in ("one", "other")]
    plots.systems(tmp_path / "a.png", [*lines, Timeline("none", "3", 1.0, [], [])], "t")
    assert (tmp_path / "a.png").stat().st_size > 1000
