from __future__ import annotations

from typing import Any

import pytest

from clonos import named
from clonos.cli import main
from clonos.simulator import command
from clonos.simulator.runs.kinds import EVERY, Kind
from clonos.simulator.runs.seeds import Result, simulate
from tests.simulator import users_jobs


def test_an_interrupted_run_says_how_far_it_came(monkeypatch, capsys):
    def until_the_third(seed, kind):
        if seed == 2:
            raise KeyboardInterrupt
        return simulate(seed, kind)

    monkeypatch.setattr(command, "simulate", until_the_third)
    assert command.main(100) == 130
    assert "2 seeds in" in capsys.readouterr().out


def test_every_kind_has_its_turn(monkeypatch, capsys):
    """Whoever sees a violation is told of which kind its seed is."""
    seen: list[Any] = []

    def wrong(seed, kind):
        seen.append(kind)
        return Result(seed, "violation", failure="lost") if kind.canary else Result(seed, "ok")

    monkeypatch.setattr(command, "simulate", wrong)
    seeds = 2 * sum(share for _, share in EVERY)
    assert command.main(seeds, 7, kind=None) == 1
    flags = {name for name in Kind._fields if any(getattr(kind, name) for kind in seen)}
    assert flags == {*Kind._fields} - {"availability", "large"}, "these go with any kind"
    assert seen.count(Kind()) == 160
    assert "clonos sim --canary --seed 427 --trace" in capsys.readouterr().out


def refused(capsys, *words):
    """What a command says that does not accept its arguments."""
    code: Any
    try:
        code = main(words)
    except SystemExit as end:  # argparse
        code = end.code
    assert code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seeds", "-1"), "argument --seeds: '-1' is not a whole number of at least 1"),
        (("--seeds", "0"), "argument --seeds: '0' is not a whole number of at least 1"),
        (("--seeds", "many"), "argument --seeds: 'many' is not a whole number of at least 1"),
        (("--seed", "-1"), "argument --seed: '-1' is not a whole number of at least 0"),
        (("--seconds", "-1"), "argument --seconds: '-1' is not a number above 0"),
        (("--jobs", "0"), "argument --jobs: '0' is not a whole number of at least 1"),
        (("--every-kind", "--loops", "--seed", "3"), "--every-kind with --loops, --seed. To do"),
        (("--trace",), "--trace without --seed. To do: give both"),
        (("--write", "seeds.json"), "--write without --mutations. To do: give both"),
        (("--rows", "x.csv", "--same-rows"), "--rows, --same-rows without a job. To do: name it"),
    ],
)
def test_what_makes_no_sense_is_refused(capsys, words, said):
    assert said in refused(capsys, "sim", *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seeds", "0"), "argument --seeds: '0' is not a whole number of at least 1"),
        (("--loops", "--jobs", "2"), "--loops, --jobs is for random jobs only"),
        (("--faults", ""), "no fault is called ''. To do: there are"),
        (("--write-test", "none/test.py"), "--write-test none/test.py: there is no such folder"),
        (("--answers", "none/a.jsonl"), "recorded answers cannot be kept in none/a.jsonl"),
        (("--answers", "broken.jsonl"), "broken.jsonl is not a file of recorded answers"),
    ],
)
def test_what_makes_no_sense_for_a_users_job_is_refused(capsys, monkeypatch, tmp_path, words, said):
    (tmp_path / "broken.jsonl").write_text('{"function": 1}\n')
    (tmp_path / "rows.jsonl").write_text('{"user": "ann", "cents": 3}\n')
    monkeypatch.chdir(tmp_path)
    name = "tests.simulator.users_jobs:totals"
    monkeypatch.setattr(named, "import_module", lambda _: users_jobs)
    assert said in refused(capsys, "sim", name, "--rows", "rows.jsonl", *words)
