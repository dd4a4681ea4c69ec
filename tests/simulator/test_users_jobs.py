"""A user's own job in the simulator: what it promises, and how its mistakes are told."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.operators.by_key.outer_join import OuterJoinOperator
from clonos.operators.process.asking import CallTable
from clonos.simulator.user_job import answers
from clonos.state.stores import KeyedStore
from clonos.state.values import ValueStore
from clonos.testing import CannotSimulate, SimulationFailed, simulate
from tests.simulator import users_jobs as users

HERE = Path(__file__).parent
EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
ROWS = [(f"user {i % 3}", i) for i in range(12)]


def failing(job, rows=ROWS, **options):
    with pytest.raises(SimulationFailed) as caught:
        simulate(job, rows, **options)
    return caught.value


# --- what holds whatever dies ---------------------------------------------------------------------


def test_the_same_rows_come_out_whatever_dies():
    done = simulate(users.totals(), ROWS, seeds=4, same_rows=True, check=users.check)
    assert done.runs == 4
    assert done.deaths
    assert str(done).startswith("4 simulations")
    last = {row["user"]: row["cents"] for row in done.outputs["out"].to_pylist()}
    assert last == {"user 0": 18, "user 1": 22, "user 2": 26}


def test_a_process_dies_after_each_step():
    done = simulate(users.totals(), ROWS[:6], seeds=1, every_step=True, same_rows=True)
    assert done.runs >= 8
    assert done.deaths >= done.runs - 1, "the last step may end the job"
    assert not done.faults


@pytest.mark.soak
def test_jobs_of_all_kinds_survive_a_kill_after_each_step():
    fakes = {"ask": lambda user: "good", "score": lambda user: 0.5, "charge": lambda row: "paid"}
    for job in (users.totals(parallelism=2), users.calling(), users.with_effect(users.charge)):
        is_same = job.parallelism == 1  # else running totals depend on which row comes first
        simulate(job, ROWS, services=fakes, same_rows=is_same, seeds=2, every_step=True)
        simulate(job, ROWS, services=fakes, same_rows=is_same, seeds=60)


def as_scores(users_asked):
    return [len(user) / 2 for user in users_asked]


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_of_a_batch_have_one_answer_whatever_dies(ordered):
    fakes = {"scores": as_scores}
    job = users.batched(ordered)
    done = simulate(job, ROWS, services=fakes, seeds=3, same_rows=ordered, check=users.check)
    assert done.deaths
    done = simulate(job, ROWS[:3], services=fakes, seeds=[2], every_step=True, same_rows=ordered)
    assert done.deaths >= done.runs - 1, "the last step may end the job"


def test_an_effect_of_several_rows_is_made_once():
    told = []

    def charge_all(rows, *, call):
        told.append(len(rows))
        return [(call.key,) for _ in rows]

    job = users.with_effect(users.charge_all, batch=3)
    done = simulate(job, ROWS, services={"charge_all": charge_all}, seeds=10)
    assert done.deaths
    assert done.outputs["out"].num_rows == len(ROWS)
    assert max(told) > 1


@pytest.mark.parametrize(("job", "seeds"), [(users.batched, 40), (users.talking_together, 60)])
def test_what_is_asked_together_is_state(job, seeds, monkeypatch):
    """Of a cut that is forgotten, the log has an answer to something else than what is asked."""
    told = KeyedStore.put

    def forgetful(store, key, group, value):
        told(store, key, group, value)
        if key[:1] == b"b":
            store._dirty.pop(key)

    monkeypatch.setattr(KeyedStore, "put", forgetful)
    with pytest.raises(SimulationFailed):
        simulate(job(), ROWS, services={"scores": as_scores}, seeds=seeds)


def score_of(text):
    return len(text) / 2


SAID = sorted((f"{user} {cents}!", score_of(f"{user} {cents}!")) for user, cents in ROWS)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_a_process_has_so_many_calls_open_whatever_dies(in_flight, monkeypatch):
    told, most = CallTable.add, [0]

    def counting(table, number, kept, step):
        request = told(table, number, kept, step)
        most[0] = max(most[0], len(table.requests()))
        return request

    monkeypatch.setattr(CallTable, "add", counting)

    def check(outputs):
        assert sorted(map(tuple, map(dict.values, outputs["out"].to_pylist()))) == SAID

    job, fakes = users.talking(in_flight), {"score": score_of}
    done = simulate(job, ROWS, services=fakes, seeds=3, check=check)
    assert done.deaths
    done = simulate(job, ROWS[:3], services=fakes, seeds=[7], every_step=True)
    assert done.deaths >= done.runs - 1, "the last step may end the job"
    assert most[0] == in_flight


def said(outputs):
    return sorted(map(tuple, map(dict.values, outputs["out"].to_pylist())))


@pytest.mark.parametrize("within", [None, "20 ms"])
@pytest.mark.parametrize("in_flight", [1, 3])
def test_questions_of_a_process_have_one_answer_together_whatever_dies(in_flight, within):
    sizes: Counter[int] = Counter()

    def scores(texts):
        sizes[len(texts)] += 1
        return [score_of(text) for text in texts]

    def check(outputs):
        assert said(outputs) == SAID

    job = users.talking_together(in_flight, within)
    done = simulate(job, ROWS, services={"scores": scores}, seeds=6, check=check)
    assert done.deaths
    assert set(sizes) > {1}
    done = simulate(job, ROWS[:3], services={"scores": scores}, seeds=[7], every_step=True)
    assert done.deaths >= done.runs - 1, "the last step may end the job"


def test_rows_of_a_loop_are_scored_and_charged_once_a_round():
    """Also those that are copied, that leave, that are bad."""
    fakes = {"score": lambda user: 1.0, "charge": lambda row, *, call: call.key}

    def check(outputs):
        out, paid, bad = (outputs[name].num_rows for name in ("out", "paid", "bad"))
        rounds = sum(cents if cents < 4 else cents - 4 for _, cents in ROWS if cents)
        assert (out, paid, bad) == (rounds + 1, rounds + 1, sum(c >= 4 for _, c in ROWS))
        keys = outputs["paid"]["receipt"].to_pylist()
        assert len(set(keys)) == len(keys)

    assert simulate(users.rounds(), ROWS, services=fakes, seeds=2, check=check).deaths


def test_a_budget_ends_whatever_dies():
    """Also in a loop; what is asked again after a kill is the service's bill, not this one."""
    answered: Counter[bool] = Counter()
    fakes = {"score": lambda user: 1.0, "charge": lambda row, *, call: call.key}

    def check(outputs):
        scores = outputs["out"]["score"].to_pylist()
        answered.update(score == 1.0 for score in scores)
        assert scores.count(1.0) == 6, "three for each of two tasks"
        assert scores.count(-1.0) == len(scores) - 6

    job = users.rounds(budget=clonos.Budget(calls=6), on_error=lambda row, error: -1.0)
    assert simulate(job, ROWS, services=fakes, seeds=2, check=check).deaths


def test_calls_that_wait_are_state(monkeypatch):
    """Who forgets them never asks."""
    told = KeyedStore.put_kept

    def forgetful(store, key, group, kept):
        told(store, key, group, kept)
        if key[:1] == b"w":
            store._dirty.pop(key)

    monkeypatch.setattr(KeyedStore, "put_kept", forgetful)
    with pytest.raises(SimulationFailed):
        simulate(users.talking(), ROWS, services={"score": score_of}, seeds=40)


ORDERS = [(i % 7, EPOCH + timedelta(seconds=i)) for i in range(14)]
PAYMENTS = [(i % 9, EPOCH + timedelta(seconds=5 + 2 * i), i) for i in range(9)]


def orders_and_payments(how: str) -> list[Any]:
    """What the join of the two comes to."""
    ten = timedelta(seconds=10)
    pairs = [
        (o, p) for o in ORDERS for p in PAYMENTS if o[0] == p[0] and o[1] <= p[1] <= o[1] + ten
    ]
    met, paid = {o for o, _ in pairs}, {p for _, p in pairs}
    if how in ("semi", "anti"):
        return sorted(o for o in ORDERS if (o in met) == (how == "semi"))
    found: list[Any] = [(*o, *p) for o, p in pairs]
    found += [(*o, None, None, None) for o in ORDERS if o not in met] if how != "right" else []
    found += [(None, None, *p) for p in PAYMENTS if p not in paid] if how != "left" else []
    return sorted(found, key=repr)


@pytest.mark.parametrize("how", ["left", "right", "full", "semi", "anti"])
def test_rows_without_a_partner_come_once_whatever_dies(how):
    """Rows come in the order of their times: none is late, whichever source is ahead."""
    expected = orders_and_payments(how)
    assert len(expected) >= 3

    def check(outputs):
        found = [tuple(row.values()) for row in outputs["out"].to_pylist()]
        assert sorted(found, key=repr) == sorted(expected, key=repr)

    given = {"orders": ORDERS, "payments": PAYMENTS}
    assert simulate(users.unpaid(how), given, seeds=3, check=check).deaths


@pytest.mark.soak
@pytest.mark.parametrize("how", ["left", "right", "full", "semi", "anti"])
def test_rows_without_a_partner_come_once_if_a_process_dies_after_each_step(how):
    given = {"orders": ORDERS, "payments": PAYMENTS}
    simulate(users.unpaid(how), given, seeds=1, every_step=True, same_rows=True)
    simulate(users.unpaid(how), given, seeds=200, same_rows=True)


def test_a_processor_of_sparks_does_the_same_whatever_dies():
    """How rows are cut into batches is in the log, and is no business of this processor."""
    rows = [(user, cents, EPOCH + timedelta(seconds=cents)) for user, cents in ROWS]

    def check(outputs):
        found = outputs["out"].to_pylist()
        assert sum(-row["cents"] for row in found if row["cents"] < 0) == sum(c for _, c in ROWS)
        counts = {user: [r["cents"] for r in found if r["user"] == user and r["cents"] > 0]
                  for user, _ in ROWS}  # fmt: skip
        assert all(each == [1, 2, 3, 4] for each in counts.values())

    assert simulate(users.visits(), rows, seeds=3, check=check).deaths


@pytest.mark.soak
def test_a_processor_of_sparks_does_the_same_if_a_process_dies_after_each_step():
    rows = [(user, cents, EPOCH + timedelta(seconds=cents)) for user, cents in ROWS]
    simulate(users.visits(), rows[:6], seeds=2, every_step=True)
    simulate(users.visits(), rows, seeds=100)


def test_what_a_processor_of_sparks_keeps_is_state(monkeypatch):
    """Who forgets a change of it does something else after a failure."""
    told = ValueStore.put_kept

    def forgetful(store, key, group, kept):
        told(store, key, group, kept)
        if b"count" in key:
            store._dirty.pop(key, None)

    monkeypatch.setattr(ValueStore, "put_kept", forgetful)
    rows = [(user, cents, EPOCH + timedelta(seconds=cents)) for user, cents in ROWS]
    with pytest.raises(SimulationFailed):
        simulate(users.visits(), rows, seeds=60)


def test_who_has_met_a_partner_is_state(monkeypatch):
    """Who forgets it lets rows out again, as if they were alone."""
    told = OuterJoinOperator._leave

    def forgetful(operator, port, orders):
        met = told(operator, port, orders)
        operator._waiting[port]._gone.clear()
        return met

    monkeypatch.setattr(OuterJoinOperator, "_leave", forgetful)
    with pytest.raises(SimulationFailed):
        simulate(users.unpaid("left"), {"orders": ORDERS, "payments": PAYMENTS}, seeds=60)


def test_rows_that_can_be_read_once_are_read_by_all_tasks():
    done = simulate(users.totals(parallelism=2), iter(ROWS), seeds=1)
    assert done.outputs["out"].num_rows == len(ROWS)


@pytest.mark.soak
def test_a_long_time_is_no_hang():
    done = simulate(users.totals(parallelism=2), ROWS, seeds=1, duration="10 minutes")
    assert done.steps


def test_no_seed_is_no_success():
    with pytest.raises(CannotSimulate, match="no seed"):
        simulate(users.totals(), ROWS, seeds=0)


def test_a_seed_is_the_same_simulation_every_time():
    one, other = (simulate(users.totals(parallelism=2), ROWS, seeds=[5]) for _ in range(2))
    assert (one.steps, one.deaths, one.faults) == (other.steps, other.deaths, other.faults)
    assert one.outputs["out"].equals(other.outputs["out"])


def test_timers_fire_if_the_rows_take_their_time():
    table = simulate(users.totals(), ROWS, seeds=1, duration="2 minutes").outputs["out"]
    assert -1 in table["cents"].to_pylist()


# --- rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dicts", "arrow", "jsonl", "csv", "parquet", "source"])
def test_rows_come_as_users_have_them(kind, tmp_path):
    table = pa.table({"user": [u for u, _ in ROWS], "cents": [c for _, c in ROWS]})
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    elif kind == "csv":
        pa.csv.write_csv(table, path)
    elif kind == "parquet":
        pa.parquet.write_table(table, path)
    given = {"dicts": table.to_pylist(), "arrow": table}.get(kind, path)
    if kind == "source":
        given = clonos.sources.from_batches([table])
    outputs = simulate(users.totals(parallelism=2), {"payments": given}, seeds=1).outputs
    assert outputs["out"].num_rows == len(ROWS)


def test_what_cannot_be_read_is_named():
    with pytest.raises(CannotSimulate, match=r"no rows for 'payments' \(kafka\)"):
        simulate(users.totals())
    with pytest.raises(CannotSimulate, match="rows for payment, which is not a source"):
        simulate(users.totals(), {"payment": ROWS})
    with pytest.raises(CannotSimulate, match=r"rows cannot be read from.*\.jsonl"):
        simulate(users.totals(), "rows.txt")
    with pytest.raises(CannotSimulate, match="has no cents, but cent"):
        simulate(users.totals(), [{"user": "a", "cents": 1, "at": 0}, {"user": "a", "cent": 1}])


def test_a_table_that_is_looked_up_is_there_and_changes():
    tables = [pa.table({"user": ["user 0"], "name": [name]}) for name in ("Ann", "Eve")]
    job, rows = users.payments()
    named = rows.look_up(lambda: tables[0], "user", refresh="1 second", how="left", name="names")
    named.sink(clonos.sinks.collect(), name="out")
    names: Counter[str | None] = Counter()
    for seed in range(3):
        given = {"payments": ROWS, "names.table": tables[1:]}
        done = simulate(job, given, seeds=[seed])
        names.update(done.outputs["out"]["name"].to_pylist())
    assert set(names) == {None, "Ann", "Eve"}


# --- services -------------------------------------------------------------------------------------


def test_services_are_stood_in_for():
    fakes = {users.ask: {f"user {i}": "good" for i in range(3)}, "score": lambda user: 0.5}
    table = simulate(users.calling(), ROWS, seeds=3, services=fakes, same_rows=True).outputs["out"]
    assert set(table["verdict"].to_pylist()) == {"good"}
    assert set(table["score"].to_pylist()) == {0.5}


def test_an_answer_that_is_another_one_each_time_is_asked_for_once():
    fakes = {"ask": lambda user: str(random.random()), "score": lambda user: random.random()}
    done = simulate(users.calling(), ROWS, seeds=4, services=fakes)
    assert len(set(done.outputs["out"]["verdict"].to_pylist())) == len(ROWS)


def test_who_calls_without_a_stand_in_is_named():
    with pytest.raises(CannotSimulate, match=r"users_jobs:ask, and nothing stands in for it"):
        simulate(users.calling(), ROWS)
    with pytest.raises(CannotSimulate, match=r"calls .*users_jobs:score"):
        simulate(users.calling(), ROWS, services={"ask": lambda user: "good"})
    with pytest.raises(CannotSimulate, match="3 answers for 'ask'"):
        simulate(users.calling(), ROWS, services={"ask": 3})


def test_real_answers_are_asked_for_once_and_kept(tmp_path, monkeypatch):
    asked: Counter[str] = Counter()

    def real(user):
        asked[user] += 1
        if user == "user 2":
            raise ValueError("unknown")
        return "good"

    def judge(row, ctx):
        try:
            return row.user, row.cents, ctx.call(real, row.user)
        except ValueError as error:
            return row.user, row.cents, str(error)

    job, rows = users.payments()
    rows.map(judge, f"{users.SCHEMA}, verdict string").sink(clonos.sinks.collect(), name="out")
    monkeypatch.setattr(users, "real", real, raising=False)
    real.__module__, real.__qualname__ = users.__name__, "real"
    path = tmp_path / "answers.jsonl"
    for _ in range(2):
        done = simulate(job, ROWS, seeds=3, services={"real": "record"}, answers=path)
        assert set(done.outputs["out"]["verdict"].to_pylist()) == {"good", "unknown"}
    assert asked == {"user 0": 1, "user 1": 1, "user 2": 1}


@pytest.mark.parametrize("name", ["charge", "charge_today"])
def test_an_effect_is_made_once(name):
    keys: set[str] = set()

    def fake(row, *, call):
        keys.add(call.key)
        return f"{row.user} {row.cents}"

    job, fakes = users.with_effect(getattr(users, name)), {name: fake}
    done = simulate(job, ROWS, seeds=3, services=fakes, same_rows=True)
    receipts = Counter(done.outputs["out"]["receipt"].to_pylist())
    assert receipts == {f"{user} {cents}": 1 for user, cents in ROWS}
    assert len(keys) == len(ROWS), "the same keys in each seed"


def test_rows_with_one_identity_share_an_effect_or_are_refused_whatever_dies():
    given = [("a", 1), ("b", 1), ("a", 1), ("a", 2), ("b", 1), ("a", 1), ("a", 2)]
    told: Counter[tuple[int, str]] = Counter()

    def check(outputs):
        receipts = outputs["out"]["receipt"].to_pylist()
        told.update((cents, said) for (_, cents), said in zip(given, receipts, strict=True))

    how = {"identity": "user", "on_error": lambda row, error: (type(error).__name__,)}
    job = users.with_effect(users.charge, **how)
    fakes = {"charge": lambda row, *, call: f"{row.user} {row.cents}"}
    assert simulate(job, given, seeds=6, services=fakes, check=check).deaths
    assert set(told) == {(1, "a 1"), (1, "b 1"), (2, "a 1"), (2, "OtherArguments")}, (
        "of an effect that is over nobody knows the arguments"
    )


def test_no_effect_is_made_for_real():
    with pytest.raises(CannotSimulate, match="charge, an effect, which would be made for real"):
        simulate(users.with_effect(users.charge), ROWS, services={"charge": "record"})


def test_an_effect_that_nobody_can_find_out_about_ends_the_job():
    """... as it would in production, if its process dies at the wrong moment."""
    fakes = {"mail": lambda row: "sent"}
    failed = failing(users.with_effect(users.mail), seeds=40, services=fakes, faults=["kill"])
    assert "nobody can find out" in str(failed)


# --- checks that must be able to fail -------------------------------------------------------------


def service_of(*asked, task=0):
    """A journal in which a life of a task was given these answers."""
    service = answers.Answers(answers.StandIns({"ask": {1: "a", 2: "b"}}, answers.Recording()))
    for life, argument in asked:
        service.call(task, life, users.ask, (argument,), {})
    return service


def test_calls_that_are_made_again_are_found():
    from clonos.core.canonical import encode
    from clonos.core.determinants import Call, SourceEnd, encode_record
    from clonos.core.plan import Incarnation, TaskSpec
    from clonos.simulator.checks.violations import Violation

    one, two = Incarnation(1, 0), Incarnation(1, 1)
    task = TaskSpec(0, "judge[0]", "judge", 0, (), ())

    def logged(life, answer):
        return life, encode_record([SourceEnd(), Call(7, True, encode(answer))])

    service_of((one, 1), (two, 2)).calls_once(task, [logged(one, "a"), logged(two, "b")])
    service_of((one, 1), (one, 2)).calls_once(task, [logged(one, "a")])  # the rest died with it
    for asked, entries in [
        ([(one, 1)], [logged(two, "a")]),
        ([(one, 1), (two, 1), (two, 2)], [logged(one, "a"), logged(two, "b")]),
        ([(one, 2)], [logged(one, "a")]),
    ]:
        with pytest.raises(Violation, match="calls"):
            service_of(*asked).calls_once(task, entries)


# --- mistakes of users ----------------------------------------------------------------------------


def test_chance_outside_of_ctx_is_a_divergence_with_its_line():
    failed = failing(users.mapped(users.noisy))
    assert (failed.verdict, failed.seed) == ("divergence", 0)
    assert failed.where == "payments[0] (payments, change)"
    line = next(n for n, text in enumerate(_source(), 1) if "random.randrange" in text)
    assert f"users_jobs.py:{line}, in noisy" in str(failed)
    assert "ctx.random" in failed.remedy
    assert "seeds=[0]" in failed.remedy


def _source():
    return Path(users.__file__).read_text("utf-8").splitlines()


def test_what_a_module_remembers_is_a_divergence():
    assert failing(users.mapped(users.counting)).verdict == "divergence"


def test_what_an_object_remembers_is_forgotten_with_its_process():
    failed = failing(users.totals(users.Forgetful), seeds=[6])
    assert failed.verdict == "divergence"
    assert failed.where == "total[0]"


def test_an_error_of_a_function_comes_first():
    failed = failing(users.mapped(users.failing))
    assert failed.verdict == "OperatorError"
    assert str(failed).lstrip().startswith("Traceback of your code")
    assert failed.where == "change[0] in task payments[0]"
    assert "ZeroDivisionError" in str(failed)
    assert "Clonos itself" not in str(failed)


def test_a_check_that_fails_says_why():
    def check(outputs):
        assert outputs["out"].num_rows == 13, "a row is missing"

    failed = failing(users.totals(), check=check)
    assert failed.verdict == "check"
    assert "the check raised AssertionError: a row is missing" in str(failed)
    assert "returned False" in str(failing(users.totals(), check=users.wrong_check))


def test_rows_that_depend_on_failures_are_shown():
    """How rows were cut into batches is in the log, so it is no divergence; but others come out."""

    def count(batch):
        return pa.RecordBatch.from_pydict({"n": pa.array([batch.num_rows], pa.int64())})

    job, rows = users.payments()
    rows.map_batches(count, "n long").sink(clonos.sinks.collect(), name="out")
    failed = failing(job, ROWS * 5, seeds=30, same_rows=True)
    assert failed.verdict == "rows"
    assert "sink 'out' does not have the rows of a run without failures" in str(failed)


def test_faults_can_be_chosen():
    assert set(simulate(users.totals(), ROWS, seeds=5, faults=["stall"]).faults) == {"stall"}
    with pytest.raises(CannotSimulate, match=r"no fault is called 'kil'.*kill"):
        simulate(users.totals(), ROWS, faults=["kil"])


# --- the command ----------------------------------------------------------------------------------


def run(folder, *words):
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{HERE}"}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


def test_the_command_writes_a_test_that_fails(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"user": user, "cents": cents}) + "\n" for user, cents in ROWS)
    )
    words = ("-m", "clonos.cli", "sim", "--rows", "payments=rows.jsonl", "--seeds", 2)
    good = run(tmp_path, *words, "users_jobs", "--check", "users_jobs")
    assert good.returncode == 0, good.stderr
    assert good.stdout.startswith("2 simulations")
    bad = run(tmp_path, *words, "users_jobs:shaky", "--write-test", "test_seed.py")
    assert bad.returncode == 1, bad.stderr
    assert "To do: take time" in bad.stdout
    assert "clonos sim users_jobs:shaky --rows payments=rows.jsonl --seed 0" in bad.stdout
    refused = run(tmp_path, *words, "users_jobs", "--harsh")
    assert "--harsh is for random jobs only" in refused.stderr
    tested = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_seed.py")
    assert "SimulationFailed" in tested.stdout
    assert "1 failed" in tested.stdout
