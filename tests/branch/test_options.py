"""Options of branches and canaries that make no sense are refused before anything is asked."""

from __future__ import annotations

import inspect

import pytest

import clonos
from clonos.branch import Branch, Budget
from clonos.branch.canary import follow
from clonos.cli import main
from clonos.cluster.running_past import ANSWERS, RunningPast
from clonos.errors import CannotReplace, WrongType
from clonos.options import keywords
from tests.branch.test_branch import begun, mine, simulated
from tests.branch.test_follow import followed


@pytest.fixture(scope="module")
def kept():
    job = mine()
    return job, simulated(job, 5, slots=3, standbys=0)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"calls": "alive"}, "calls='alive'"),
        ({"calls": 200}, "calls=200"),
        ({"calls": Budget(cost=5.0), "ask": ["more"]}, "nothing says what a call costs"),
        ({"calls": Budget(tokens=9), "ask": ["more"]}, "nothing says how many a call takes"),
        ({"calls": "live", "ask": ["more"], "cost": 0.5}, "cost=0.5"),
        ({"calls": "live", "ask": "more"}, "ask='more'"),
        ({"calls": "live", "ask": len}, "ask="),
        ({"reuse": "more"}, "reuse='more'"),
    ],
)
def test_how_questions_are_answered(kept, how, match):
    with pytest.raises(WrongType, match=match):
        Branch(begun(kept), {}, **how)
    job, cluster = kept
    with pytest.raises(WrongType, match=match):
        followed(job, cluster, {}, 3, **how)


def test_keys_are_a_list_and_belong_to_a_sink(kept):
    job, cluster = kept
    with pytest.raises(WrongType, match="keys='id'"):
        Branch(begun(kept), {}).compare("out", keys="id")
    with pytest.raises(WrongType, match="keys='id'"):
        followed(job, cluster, {}, 3, {"out": "id"})
    with pytest.raises(CannotReplace, match="no sink 'alerts'"):
        followed(job, cluster, {}, 3, {"alerts": ["id"]})


@pytest.mark.parametrize(("option", "other"), [("calls", "ask"), ("keys", "compare")])
def test_an_option_of_the_command_that_would_be_ignored(capsys, option, other):
    assert main(["branch", "nowhere:job", f"--{option}", "1"]) == 2
    assert f"--{option} without --{other}" in capsys.readouterr().err


def small() -> clonos.Job:
    job = clonos.Job("kept")
    job.source(clonos.sources.from_batches([], "n long")).sink(clonos.sinks.collect())
    return job


@pytest.mark.parametrize(
    ("ask", "method", "meant"),
    [
        (lambda job: job.branch(at="oldest", replace={}, call="live"), "job.branch", "calls"),
        (lambda job: job.rewind(at="oldest", dryrun=True), "job.rewind", "dry_run"),
        (
            lambda _: RunningPast().branch(at="oldest", replace={}, inflight=3),
            "running.branch",
            "in_flight",
        ),
        (lambda _: RunningPast().canary({}, kyes={"out": ["id"]}), "running.canary", "keys"),
    ],
)
def test_an_option_that_there_is_not(ask, method, meant):
    with pytest.raises(WrongType, match=f"{method}: there is no option .* mean {meant}") as found:
        ask(small())
    assert isinstance(found.value, clonos.errors.DefinitionError)


def test_what_the_methods_of_a_running_job_pass_on_is_what_there_is():
    assert {*ANSWERS, "until", "keeps_errors"} == {*keywords(Branch)}
    assert set(ANSWERS) <= inspect.signature(follow).parameters.keys()
