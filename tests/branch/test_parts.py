"""Bundles of one task, of a part of the past, with other values, and of what kills a process."""

from __future__ import annotations

import json
import zipfile
from contextlib import closing, suppress
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

import msgpack
import pyarrow as pa
import pytest

import clonos
from clonos.branch import Branch
from clonos.branch.bundling import Wanted, made_of
from clonos.branch.redaction import Redaction
from clonos.cluster.durable import house_keeper
from clonos.columns.rows import Row, row_type
from clonos.core.calls import Outcome
from clonos.core.canonical import decode, decode_error, encode, encode_error
from clonos.core.determinants import Call, Clock, Outcomes, decode_record, encode_record
from clonos.errors import BundleTooLarge, CannotRedact, OperatorError, UnknownTask, WrongType
from clonos.replay import NothingToReplay, Replay
from clonos.replay.past import Past, activations, read
from clonos.simulator.jobs.arrow import ArrowJob, Asking, Running, random_arrow_job
from tests.branch.test_branch import asking
from tests.branch.test_bundles import bundled, definition, my_job, simulated, steps_of

SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 60))]


def content(path):
    """All that is in the file, as it is before it was packed."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("seed", SEEDS)
def test_one_task_does_alone_what_it_did_among_others(seed, tmp_path):
    """Kills, markers or none, windows, joins, timers, calls; sources, sinks and what is between."""
    random = Random(seed)
    job = random_arrow_job(random, has_markers=seed % 2 == 0)
    cluster = simulated(job, seed)
    (tmp_path / "whole").mkdir()
    number = 1 + seed % 3
    out, _ = bundled(job, cluster, tmp_path / "whole", number)
    whole = steps_of(read(job.compiled, str(out), None))
    for task in random.sample(job.plan.tasks, k=min(2, len(job.plan.tasks))):
        folder = tmp_path / str(task.id)
        folder.mkdir()
        part, made = bundled(job, cluster, folder, number, task=task.name)
        assert set(made.steps) == {task.name}
        mine = [one for one in whole if one[0].startswith(f"{task.name} ")]
        assert steps_of(read(job.compiled, str(part), None)) == mine
        branch = Branch(read(job.compiled, str(part), None), {})
        for sink in branch.sinks:
            assert branch.rows(sink) == branch.job_rows(sink)
        rows = {name for name in content(part) if name.startswith("rows/")}
        assert rows <= {f"rows/{task.id}.arrow"}


def test_changed_code_of_one_task(tmp_path):
    class Twice(Running):
        def on_row(self, row, ctx):
            return [(*made[:3], 2 * made[3]) for made in super().on_row(row, ctx)]

    job = my_job()
    out, _ = bundled(job, simulated(job, 5), tmp_path, task="running[0]")
    branch = Branch(read(job.compiled, str(out), None), {"running": Twice()})
    difference = branch.compare("out")
    assert 0 < difference.count("only_a") == difference.count("only_b")
    out.unlink()
    out, _ = bundled(job, simulated(job, 5), tmp_path, task="rows[0]")
    branch = Branch(read(job.compiled, str(out), None), {})
    assert branch.sinks == ("running[0]",), "it has no sink: what it sends is what it delivers"
    assert branch.rows().num_rows == 40


@pytest.mark.parametrize("seed", SEEDS)
def test_a_past_may_end_early(seed, tmp_path):
    random = Random(seed)
    job = random_arrow_job(random, has_markers=seed % 2 == 0)
    cluster = simulated(job, seed)
    (tmp_path / "whole").mkdir()
    out, _ = bundled(job, cluster, tmp_path / "whole")
    whole = dict(by_task(steps_of(read(job.compiled, str(out), None))))
    task = random.choice([name for name, steps in whole.items() if len(steps) > 2])
    end = len(whole[task]) // 2
    part, made = bundled(job, cluster, tmp_path, task=task, until=end)
    assert made.steps == {task: end}
    assert steps_of(read(job.compiled, str(part), None)) == whole[task][:end]
    part.unlink()
    part, made = bundled(job, cluster, tmp_path, until=2)
    for name, steps in by_task(steps_of(read(job.compiled, str(part), None))).items():
        assert steps == whole[name][: len(steps)]
    assert sum(made.steps.values()) < sum(map(len, whole.values()))


def by_task(steps):
    found: dict[str, list[Any]] = {}
    for step in steps:
        found.setdefault(step[0].partition(" step ")[0], []).append(step)
    return found


def test_what_is_no_part_of_it(tmp_path):
    job = my_job()
    cluster = simulated(job, 5)
    with pytest.raises(UnknownTask, match=r"name one of rows\[0\], running\[0\]"):
        bundled(job, cluster, tmp_path, task="nobody")
    with pytest.raises(BundleTooLarge, match="more than 10"):
        bundled(job, cluster, tmp_path, nbytes=10)
    assert not list(tmp_path.iterdir())
    elsewhere = tmp_path / "of somebody else"
    elsewhere.touch(0o644)
    (tmp_path / ".past.clonos.part").symlink_to(elsewhere)
    out, _ = bundled(job, cluster, tmp_path, task="running[0]")
    assert out.stat().st_mode & 0o077 == 0, "it is the user's alone"
    assert not elsewhere.stat().st_size
    with (
        closing(read(job.compiled, str(out), None)) as past,
        Replay(past) as replay,
        pytest.raises(NothingToReplay, match=r"use one of running\[0\]"),
    ):
        replay["rows[0]"]


class Sum(clonos.Process):
    """What a service says of each row, and the sum, under names."""

    def open(self, ctx):
        self.kept = ctx.state("kept")

    def on_row(self, row, ctx):
        level = 0
        with suppress(ValueError):  # the simulator's services fail now and then
            level = ctx.call(ask, row.name)
        kept = self.kept.get({"name": row.name, "n": 0})
        self.kept.set({"name": kept["name"], "n": kept["n"] + 1})
        return [(f"dear {row.name}", level, kept["n"])]


def ask(name):
    raise AssertionError("the simulator answers")


def named_job(work=None):
    made = clonos.Job("named", seed=7, sharing_depth="full")
    data = [
        [(n % 7, f"person {n}") for n in range(first, first + 10)] for first in range(0, 60, 10)
    ]
    source = clonos.sources.from_batches(data, schema="n long, name string")
    rows = made.source(source, name="rows").filter(work or (lambda row: True), name="some")
    summed = rows.key_by("n").process(Sum(), "greeting string, level long, n long", name="sum")
    summed.sink(clonos.sinks.collect(), name="out")
    return ArrowJob(made.compile())


@pytest.mark.parametrize("task", [None, "sum[0]"])
@pytest.mark.parametrize(
    "redact", [["name"], lambda name, value: "N. N." if name == "name" else value]
)
def test_values_are_replaced_wherever_they_are(tmp_path, redact, task):
    job = named_job()
    cluster = simulated(job, 5)
    (tmp_path / "plain").mkdir()
    plain, before = bundled(job, cluster, tmp_path / "plain", number=2, task=task)
    assert any(b"person" in one for one in content(plain).values())
    out, made = bundled(job, cluster, tmp_path, number=2, task=task, redact=redact)
    found = content(out)
    assert not [name for name, one in found.items() if b"person" in one]
    assert json.loads(found["about.json"])["is_redacted"]
    assert made.steps == before.steps
    assert len(steps_of(read(job.compiled, str(out), None))) == sum(made.steps.values())
    branch = Branch(read(job.compiled, str(out), None), {})
    assert branch.rows() == branch.job_rows()
    assert branch.rows().num_rows
    assert all(row["greeting"].startswith("dear ") for row in branch.rows().to_pylist())


def test_a_name_that_no_value_has_is_told(tmp_path):
    job = named_job()
    _, made = bundled(job, simulated(job, 5), tmp_path, redact=["name", "nmae"])
    assert made.unmet == ("nmae",)
    assert str(made).endswith("; no value is called nmae")


def test_what_cannot_be_replaced(tmp_path):
    job = named_job()
    cluster = simulated(job, 5)
    with pytest.raises(CannotRedact, match="state is kept by 'n'"):
        bundled(job, cluster, tmp_path, number=2, redact=["n"])
    with pytest.raises(CannotRedact, match="do not fit"):
        bundled(job, cluster, tmp_path, redact=lambda name, value: object())
    with pytest.raises(WrongType, match="redact=3"):
        bundled(job, cluster, tmp_path, redact=3)
    choosy = named_job(lambda row: row.name.startswith("person"))
    with pytest.raises(CannotRedact, match="goes another way"):
        bundled(choosy, simulated(choosy, 5), tmp_path, redact=["name"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("redact", [["n"], lambda name, value: 0 if name == "n" else value])
def test_keys_of_state_are_not_told_though_no_row_has_them(tmp_path, redact):
    job = named_job()
    cluster = simulated(job, 5)
    with pytest.raises(CannotRedact, match="state is kept by 'n'"):
        bundled(job, cluster, tmp_path, number=2, task="sum[0]", until=0, redact=redact)
    bundled(job, cluster, tmp_path, number=2, task="sum[0]", until=0, redact=["name"])


def test_a_step_of_a_source_that_has_failed_is_redacted(tmp_path):
    def fail(row):
        if row.n == 6:
            raise ValueError("six")
        return True

    made = failed_at(tmp_path, named_job(), named_job(fail), "rows[0]", 6, redact=["name"])
    assert "six" in str(made.error)
    assert not [name for name, one in content(made.path).items() if b"person" in one]


def test_fields_of_rows_and_maps_have_names_too():
    redaction = Redaction(["card"])
    row = row_type(("card", "kin"))(("4111", {"card": Decimal("4.11"), "n": 1}))
    found = redaction.value("last", [row])[0]
    assert isinstance(found, Row)
    assert found.card.startswith("~")
    assert found.kin == {"card": 0, "n": 1}
    kinds = {"said": pa.map_(pa.string(), pa.string()), "card": pa.map_(pa.string(), pa.int8())}
    deep = pa.list_(pa.struct({"all": kinds["said"], "card": pa.list_(pa.decimal128(5, 2))}))
    said = [("card", "4111"), ("name", "Ann")]
    batch = pa.record_batch(
        {
            "said": pa.array([said, None], kinds["said"]),
            "card": pa.array([[("4111", 1)], None], kinds["card"]),
            "deep": pa.array([[{"all": said, "card": [Decimal("4.11")]}], []], deep),
        }
    )
    new = redaction.rows(batch)
    assert new.schema == batch.schema
    first, second = new.to_pylist()
    assert first["said"][0][1] == first["deep"][0]["all"][0][1] == found.card
    assert first["said"][1] == ("name", "Ann")
    assert first["card"] is None
    assert first["deep"][0]["card"] == [0]
    assert second == {"said": None, "card": None, "deep": []}


def test_state_without_names_is_not_searched(tmp_path):
    job = asking(Asking())
    with pytest.raises(CannotRedact, match="cannot be searched"):
        bundled(job, simulated(job, 3), tmp_path, number=2, redact=["amount"])
    assert not list(tmp_path.iterdir())


def test_answers_and_errors_are_replaced_in_the_log():
    redaction = Redaction(["name"])
    said = encode({"name": "Ann", "level": 3, "kin": [{"name": "Bob"}]})
    failed = encode_error(ValueError("no Ann"))
    strange = encode_error(LookupErrorOfMine("no Ann"))
    entry: list[Any] = [Outcomes((Outcome(0, 7, 99, ok=True, answer=said, trace="Ann"),)), Clock(5)]
    entry += [
        Call(5, ok, answer) for ok, answer in ((True, said), (False, failed), (False, strange))
    ]
    found: list[Any] = decode_record(redaction.entry(encode_record(entry), None))
    cause, clock, *calls = found
    assert clock == Clock(5)
    (outcome,) = cause.outcomes
    assert (outcome.number, outcome.digest, outcome.trace) == (7, 0, "")
    assert {one.arguments for one in calls} == {0}
    for answer in (outcome.answer, calls[0].answer):
        one = decode(answer)
        assert one["level"] == 3
        assert one["name"].startswith("~")
        assert one["kin"][0]["name"].startswith("~")
    errors = [decode_error(one.answer) for one in calls[1:]]
    assert [type(error) for error in errors] == [ValueError, clonos.errors.CallError]
    assert "LookupErrorOfMine" in str(errors[1])
    assert not [one for one in [str(error) for error in errors] if "Ann" in one]


class LookupErrorOfMine(LookupError):
    """Of a class that only this module knows."""


class Deadly(Running):
    """It must never see one of the rows; where it fails, a real one would be gone."""

    def on_row(self, row, ctx):
        if row.id == 17:
            raise ValueError("deadly")
        return super().on_row(row, ctx)


def failed(tmp_path, **wanted):
    """A bundle of a job that fails where another one did not, and never went on."""
    bad = my_job(Deadly())
    made = failed_at(tmp_path, my_job(), bad, "running[0]", 17, **wanted)
    return bad.compiled, made.path, made


def failed_at(tmp_path, good, bad, name, row, **wanted):
    """... where a task takes the row whose first column is this."""
    (tmp_path / "good").mkdir()
    out, _ = bundled(good, simulated(good, 5), tmp_path / "good")
    compiled = bad.compiled
    with closing(read(good.compiled, str(out), None)) as past, Replay(past) as replay:
        known = unpacked(content(out)["journal"])
        task = next(one.id for one in past.tasks if one.name == name)
        steps = iter(lambda: replay.step(name), None)
        step = next(s for s in steps for batch in s.took if row in batch.column(0).to_pylist())
        position, entry = step.position, dict(past.records(task))[step.position]
        journal = [new for one in known if (new := cut(one, task, position))]
        journal.append(msgpack.packb(("failed", task, position, entry)))
        keeper = house_keeper(compiled.plan)
        keeper.recover(journal)
        lives, failures, lost = activations(compiled, keeper)
        assert failures == {task: position}
        pairs = zip(compiled.codes, past.codes, strict=True)
        codes = tuple(replace(code, source=known.source) for code, known in pairs)
        seen = Past(compiled, codes, keeper, lives, failures, lost, "", "", "", past.store)
        return made_of(seen, journal, tmp_path / "past.clonos", Wanted(**wanted))


def unpacked(journal):
    unpacker = msgpack.Unpacker()
    unpacker.feed(journal)
    return list(unpacker)


def cut(record, task, position):
    """A record of a journal that ends before a step of a task."""
    kind, *fields = msgpack.unpackb(record, strict_map_key=False)
    if kind == "run" and fields[0] == task:
        fields[4] = fields[4][: position - fields[3]]
        return msgpack.packb((kind, *fields)) if fields[4] else None
    if kind == "world":
        return msgpack.packb((kind, fields[0], 0, 0, False, None, {}))
    return record


class AskingFirst(Running):
    """It asks before it kills."""

    def on_row(self, row, ctx):
        if row.id == 17:
            ctx.call(abs, row.id)
        return super().on_row(row, ctx)


def test_what_a_step_asks_before_it_kills_is_in_no_log(tmp_path):
    """It has not been corrected, and starting the job again would not help."""
    bad = my_job(AskingFirst())
    made = failed_at(tmp_path, my_job(), bad, "running[0]", 17, kills="row 17 kills the process")
    with (
        closing(read(bad.compiled, str(made.path), None)) as past,
        Replay(past) as replay,
        pytest.raises(NothingToReplay, match=r"asks what no log knows.*stand_in="),
    ):
        replay.run()


@pytest.mark.parametrize("task", [None, "running[0]"])
def test_a_step_that_kills_is_not_done_to_write_it_down(tmp_path, task):
    compiled, out, made = failed(tmp_path, task=task, kills="row 17 kills the process")
    assert isinstance(made.error, OperatorError)
    assert made.error.what == "row 17 kills the process"
    mended = Branch(read(definition().compile(), str(out), None), {})
    assert 17 in {row["id"] for row in mended.rows("out").to_pylist()}
    assert 17 not in {row["id"] for row in mended.job_rows("out").to_pylist()}
    with closing(read(compiled, str(out), None)) as past, Replay(past) as replay:
        assert past.kills == "row 17 kills the process"
        with pytest.raises(OperatorError, match="deadly"):
            replay.run()


def test_one_task_that_has_failed(tmp_path):
    compiled, out, made = failed(tmp_path, task="running[0]")
    assert "deadly" in str(made.error)
    assert "running[0]" in str(made)
    with closing(read(compiled, str(out), None)) as past:
        assert not past.kills
