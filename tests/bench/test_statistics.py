"""The numbers behind the tables, with data made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from clonos_bench.statistics import (
    back_to_normal,
    gap_before,
    mean_ratio,
    output_gap,
    paired_ratio,
    percentile,
    summarize,
)

STEADY = np.arange(0.0, 10.0, 0.01)


def gap_of(times, **moments):
    found = output_gap(times, **moments)
    assert found is not None
    return found


def without(times, start, end):
    """`times` with nothing delivered between `start` and `end`."""
    return times[(times <= start) | (times >= end)]


def test_percentiles_of_a_known_distribution():
    values = list(range(1, 101))
    found = summarize(values)
    assert (found.count, found.p50, found.max) == (100, 50.5, 100)
    assert found.p90 == pytest.approx(90.1)
    assert found.p99 == pytest.approx(99.01)


def test_percentiles_of_nothing_are_unknown():
    assert math.isnan(percentile([], 50))
    assert summarize([]).count == 0


def test_what_never_came_back_counts_as_infinite():
    values = [10.0] * 9 + [math.inf]
    assert percentile(values, 50) == 10.0
    assert percentile(values, 99) == math.inf


def test_the_gap_is_the_pause_less_the_usual_pause():
    gap, end = gap_of(without(STEADY, 5.0, 5.08), kill_s=5.001, until_s=5.07)
    assert gap.pause_ms == pytest.approx(80)
    assert gap.usual_ms == pytest.approx(10)
    assert gap.gap_ms == pytest.approx(70)
    assert end == pytest.approx(5.08)


def test_a_gap_is_that_of_the_last_kill_before_it_and_one_that_stays_open_counts_so_far():
    times = without(without(STEADY, 4.0, 4.06), 5.0, 5.08)
    assert gap_before(times, 4.001, next_s=5.001) == pytest.approx(50)
    assert gap_before(times, 5.001, next_s=9.0) == pytest.approx(70)
    stopped = times[times < 5.01]  # one output was still on its way
    assert gap_before(stopped, 4.5, next_s=8.0) == pytest.approx(2990)
    assert gap_before(np.array([]), 4.5, next_s=8.0) == math.inf


def test_the_gap_may_begin_a_little_after_the_kill():
    times = without(STEADY, 5.021, 5.099)
    gap, _ = gap_of(times, kill_s=5.001, until_s=5.09)
    assert gap.pause_ms == pytest.approx(80)


def test_longer_pauses_elsewhere_are_not_due_to_the_kill():
    times = without(without(without(STEADY, 3.0, 3.5), 5.0, 5.05), 7.0, 7.9)
    gap, _ = gap_of(times, kill_s=5.001, until_s=5.04)
    assert gap.pause_ms == pytest.approx(50)


def test_outputs_of_the_same_moment_are_one():
    times = np.repeat(without(STEADY, 5.0, 5.08), 3)
    times[1::3] += 5e-6
    times[2::3] += 9e-6
    gap, _ = gap_of(times, kill_s=5.001, until_s=5.07)
    assert gap.usual_ms == pytest.approx(10)


def test_no_output_after_the_kill_is_no_gap_but_an_end():
    assert output_gap(STEADY[STEADY < 5.0], kill_s=5.0, until_s=5.1) is None


def test_without_a_failure_there_is_no_gap():
    gap, _ = gap_of(STEADY, kill_s=5.001, until_s=5.002)
    assert gap.gap_ms == pytest.approx(0, abs=1e-6)


def test_normal_is_when_latency_is_back_and_stays():
    latencies = np.full(len(STEADY), 8.0)
    latencies[(STEADY >= 5.05) & (STEADY < 5.3)] = 90.0
    normal = back_to_normal(STEADY, latencies, kill_s=5.0, gap_end_s=5.05, until_s=9.9)
    assert normal.usual_ms == pytest.approx(8)
    assert normal.after_ms == pytest.approx(300, abs=11)


def test_a_good_moment_between_bad_ones_is_not_normal():
    latencies = np.full(len(STEADY), 8.0)
    latencies[(STEADY >= 5.05) & (STEADY < 5.2)] = 90.0
    latencies[(STEADY >= 5.3) & (STEADY < 5.6)] = 90.0
    normal = back_to_normal(STEADY, latencies, kill_s=5.0, gap_end_s=5.05, until_s=9.9)
    assert normal.after_ms == pytest.approx(600, abs=11)


def test_within_ten_percent_is_normal_and_above_is_not():
    latencies = np.where(STEADY < 5.0, 10.0, 10.9)
    assert math.isfinite(back_to_normal(STEADY, latencies, 5.0, 5.05, 9.9).after_ms)
    latencies = np.where(STEADY < 5.0, 10.0, 11.1)
    assert back_to_normal(STEADY, latencies, 5.0, 5.05, 9.9).after_ms == math.inf


def test_rows_that_were_on_their_way_when_the_kill_came_do_not_count():
    # One normal output after the kill, then a long pause: normal only after the pause.
    times = without(STEADY, 5.01, 5.6)
    normal = back_to_normal(times, np.full(len(times), 5.0), 5.001, gap_end_s=5.6, until_s=9.9)
    assert normal.after_ms == pytest.approx(599, abs=1)


def test_the_next_kill_ends_the_search():
    latencies = np.where((STEADY >= 5.0) & (STEADY < 6.0), 90.0, 8.0)
    assert back_to_normal(STEADY, latencies, 5.0, 5.05, until_s=6.1).after_ms == math.inf


def test_a_ratio_of_pairs_cancels_what_both_share():
    pairs = [(1.1 * mood, mood) for mood in (1.0, 5.0, 2.0, 9.0)]
    ratio = paired_ratio(pairs)
    assert ratio.value == pytest.approx(1.1)
    assert ratio.low == pytest.approx(1.1)
    assert ratio.high == pytest.approx(1.1)


def test_the_interval_holds_the_ratio_and_shrinks_with_more_pairs():
    random = np.random.default_rng(1)
    pairs = [(1.05 * noise, 1.0) for noise in random.lognormal(0, 0.1, 100)]
    few, many = paired_ratio(pairs[:10]), paired_ratio(pairs)
    assert many.low < 1.05 < many.high
    assert many.high - many.low < few.high - few.low


def test_the_interval_is_the_same_each_time():
    pairs = [(2.0, 1.0), (3.0, 2.0), (5.0, 4.0)]
    assert paired_ratio(pairs) == paired_ratio(pairs)


def test_no_pairs_no_ratio_and_of_one_no_interval():
    assert math.isnan(paired_ratio([]).value)
    one = paired_ratio([(2.0, 1.0)])
    assert (one.value, math.isnan(one.low)) == (2.0, True)


def test_the_interval_of_two_pairs_is_students():
    ratio = paired_ratio([(math.e, 1.0), (math.e**3, 1.0)])  # logarithms 1 and 3
    assert ratio.value == pytest.approx(math.e**2)
    assert math.log(ratio.high) - 2 == pytest.approx(12.706, rel=0.02)


def test_in_a_mean_every_group_counts_as_much():
    groups = [[(2.0, 1.0)] * 9, [(8.0, 1.0)] * 3]
    assert mean_ratio(groups).value == pytest.approx(4.0)
    noisy = [[(2.0, 1.0), (2.2, 1.0), (1.8, 1.0)], [(2.0, 1.0), (2.2, 1.0), (1.8, 1.0)]]
    apart = mean_ratio(noisy)
    assert apart.high - apart.low < paired_ratio(noisy[0]).high - paired_ratio(noisy[0]).low
