"""A driver that is killed between sink and commit: without causal services, and with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import clonos

from .conftest import model_service

pytestmark = [pytest.mark.spark, pytest.mark.soak]

BATCHES, ROWS = 3, 6


def run(folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    script = Path(__file__).with_name("streaming_driver.py")
    source = str(Path(clonos.__file__).parents[1])
    return subprocess.run(
        [sys.executable, str(script), str(folder), url],
        env={**os.environ, "PYTHONPATH": source},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    with model_service() as model:
        killed = run(folder, model.url)
        assert killed.returncode == -9, killed.stderr[-3000:]
        finished = run(folder, model.url)
        assert finished.returncode == 0, finished.stderr[-3000:]
        held = json.loads(finished.stdout.splitlines()[-1])["held_max"]
        return folder, model.bill(), held


def contents(path: Path) -> dict[tuple[int, str], set[float]]:
    found = defaultdict(set)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        if row["batch"] <= BATCHES:
            found[row["batch"], row["text"]].add(row["score"])
    return found


def test_without_causal_services_the_batch_is_other_rows(outcome):
    folder, bill, _ = outcome
    changed = [where for where, scores in contents(folder / "plain one").items() if len(scores) > 1]
    assert {batch for batch, _ in changed} >= {1}
    # Each sink is an action: already without a failure the two do not see the same rows.
    one, two = contents(folder / "plain one"), contents(folder / "plain two")
    assert any(one[where] != two[where] for where in one)
    assert max(times for text, times in bill.items() if text.startswith("plain")) >= 4


def test_with_them_it_is_the_same_rows_and_nothing_is_asked_again(outcome):
    folder, bill, _ = outcome
    one, two = contents(folder / "causal one"), contents(folder / "causal two")
    assert one == two
    assert {len(scores) for scores in one.values()} == {1}
    assert len(one) == (BATCHES + 1) * ROWS
    delivered_twice = Counter(
        json.loads(line)["text"] for line in (folder / "causal one").read_text().splitlines()
    )
    assert max(delivered_twice.values()) == 2  # the sink did get batch 1 twice: it is no better
    asked = Counter(times for text, times in bill.items() if text.startswith("causal"))
    assert set(asked) == {1}


def test_what_the_foreach_batch_function_itself_asks_is_kept(outcome):
    folder, _, _ = outcome
    stamps = defaultdict(list)
    for line in (folder / "stamps").read_text().splitlines():
        batch, stamp = line.split()
        stamps[batch].append(stamp)
    assert len(stamps["1"]) == 2
    assert all(len(set(read)) == 1 for read in stamps.values())


def test_what_is_committed_is_not_kept(outcome):
    _, _, held = outcome
    per_batch = ROWS * 200 + 2_000
    assert 0 < held < 2 * per_batch
