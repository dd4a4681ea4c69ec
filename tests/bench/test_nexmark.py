"""The parts of the measurement that need no Spark."""

from __future__ import annotations

import argparse

import pytest

import clonos
from clonos_bench.nexmark import Generator
from clonos_bench.nexmark import measurement as nexmark
from clonos_bench.nexmark.queries import QUERIES


def measured(tmp_path, *options):
    parser = argparse.ArgumentParser()
    nexmark.add_arguments(parser)
    return nexmark.measure(parser.parse_args([*options, "--out", str(tmp_path)]))


def test_every_query_in_a_plain_loop(tmp_path):
    report = measured(tmp_path, "--parts", "plain", "--events", "5000")
    rates = report.data["events_per_s"]["plain"]
    assert sorted(rates, key=int) == [str(number) for number in QUERIES]
    assert all(rate > 0 for rate in rates.values())
    rows = {line[0]: line[4] for line in report.lines}
    assert rows["q0, plain loop"] == f"{Generator(5000).rows('bid'):,}"
    costs = report.data["operators"]["12"]["operators"]
    assert costs["q12_partial"]["rows"] == Generator(5000).rows("bid")
    assert 0 < costs["q12"]["rows"] < costs["q12_partial"]["rows"]
    assert (tmp_path / "nexmark" / "plain.png").exists()


def test_the_generator_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(nexmark, "_GENERATE_S", 0.01)
    report = measured(tmp_path, "--parts", "generator")
    rates = report.data["events_per_s"]["generator"]
    assert rates["all kinds"] < min(rates[kind] for kind in ("person", "auction", "bid"))


def test_unknown_queries_are_refused(tmp_path):
    with pytest.raises(clonos.ClonosError, match="no query 10"):
        measured(tmp_path, "--parts", "plain", "--queries", "10")
