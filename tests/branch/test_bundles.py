"""A past in one file: it is done again without the checkpoint, and changed code runs on it."""

from __future__ import annotations

import json
import zipfile
from contextlib import closing
from random import Random

import pyarrow as pa
import pytest

import clonos
from clonos.branch import Branch, CannotReplace
from clonos.branch.bundling import Wanted, made_of
from clonos.errors import Divergence, OtherJob, UnreadableBundle
from clonos.replay import NothingToReplay, Replay
from clonos.replay.kept import since
from clonos.replay.past import read
from clonos.simulator.jobs.arrow import SCHEMA, ArrowJob, Running, enrich, random_arrow_job
from tests.replay.test_replay import past_of
from tests.simulated import with_history

SEEDS = [*range(6), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 60))]


def simulated(job, seed):
    return with_history(job, seed, Random(f"bundle {seed}"))


def bundled(job, cluster, tmp_path, number=1, **wanted):
    """A bundle of what a simulated cluster has left behind, from one of the points on."""
    known = []

    def show(keeper, store):
        point = keeper.history.points[min(number, len(keeper.history.points)) - 1]
        keeper.rewind(point, since(keeper, point, store))
        known.extend(keeper.snapshot())

    out = tmp_path / "past.clonos"
    with closing(past_of(job, cluster, rewind=show)) as past:
        made = made_of(past, known, out, Wanted(**wanted))
    assert made.nbytes == out.stat().st_size
    return out, made


def steps_of(past):
    with closing(past), Replay(past) as replay:
        steps = replay.run()
        assert replay.is_at_the_end
        assert all(same == due for same, due in replay.compared.values())
        made = [{name: batch.to_pylist() for name, batch in s.made.items()} for s in steps]
        return list(zip(map(str, steps), made, strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bundle_is_done_again_as_the_checkpoint_is(seed, tmp_path):
    """Kills, markers or none, windows, joins, timers, calls; from the beginning, or later."""
    random = Random(seed)
    job = random_arrow_job(random, has_markers=seed % 2 == 0)
    cluster = simulated(job, seed)
    out, made = bundled(job, cluster, tmp_path, number=1 + seed % 3)
    steps = steps_of(read(job.compiled, str(out), None))
    assert len(steps) == sum(made.steps.values())

    def rewind(keeper, store):
        point = keeper.history.points[min(1 + seed % 3, len(keeper.history.points)) - 1]
        keeper.rewind(point, since(keeper, point, store))

    assert steps == steps_of(past_of(job, cluster, rewind=rewind))
    assert steps == steps_of(read(job.compiled, str(out), None)), "as often as one likes"


@pytest.mark.parametrize("seed", SEEDS)
def test_unchanged_code_makes_of_a_bundle_what_was_delivered(seed, tmp_path):
    random = Random(seed)
    job = random_arrow_job(random, has_markers=seed % 2 == 0)
    out, _ = bundled(job, simulated(job, seed), tmp_path)
    branch = Branch(read(job.compiled, str(out), None), {})
    for sink in branch.sinks:
        assert branch.rows(sink) == branch.job_rows(sink)
    assert branch.calls == 0


def definition(process=None):
    job = clonos.Job("mine", seed=7, sharing_depth="full", checkpoints="marked")
    rows = job.source(clonos.sources.from_batches([], schema=SCHEMA), name="rows")
    keyed = rows.map(enrich, SCHEMA, name="enrich").key_by("key")
    running = keyed.process(process or Running(), SCHEMA, name="running")
    running.sink(clonos.sinks.collect(), name="out")
    return job


def my_job(process=None):
    return ArrowJob(definition(process).compile(), rows=40)


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    job = my_job()
    return bundled(job, simulated(job, 5), tmp_path_factory.mktemp("mine"), number=2)


def test_changed_code_is_compared_with_what_was_delivered(mine):
    """The job's own functions are not needed."""

    class Twice(Running):
        def on_row(self, row, ctx):
            return [(*made[:3], 2 * made[3]) for made in super().on_row(row, ctx)]

    out, _ = mine
    changed = my_job(process=Twice()).compiled
    branch = Branch(read(changed, str(out), None), {})
    difference = branch.compare("out")
    assert 0 < difference.count("only_a") == difference.count("only_b")
    with (
        closing(read(changed, str(out), None)) as past,
        Replay(past) as replay,
        pytest.raises(Divergence),
    ):
        replay.run()


def test_a_bundle_ends_where_it_ends(mine):
    out, _ = mine
    compiled = my_job().compiled
    with closing(read(compiled, str(out), None)) as past:
        source = past.codes[0].source
        assert source is not None
        reader = source.reader(0, 1)
        reader.open(0)
        with pytest.raises(NothingToReplay, match="no rows beyond the end"):
            reader.read(10, 1.0)
    with pytest.raises(CannotReplace, match="ends where it was made to end"):
        Branch(read(compiled, str(out), None), {}, until=1)
    with pytest.raises(NothingToReplay, match="begins where it was made to begin"):
        read(compiled, str(out), None, at="14:03")


def test_what_a_bundle_is_of(mine, tmp_path):
    out, _ = mine
    compiled = my_job().compiled
    other = clonos.Job("mine", seed=7, sharing_depth="full", checkpoints="marked")
    rows = other.source(clonos.sources.from_batches([], schema=SCHEMA), name="rows")
    rows.map(enrich, SCHEMA, name="enrich").sink(clonos.sinks.collect(), name="out")
    with pytest.raises(OtherJob):
        read(other.compile(), str(out), None)
    whole = out.read_bytes()
    damaged = tmp_path / "damaged"
    flipped = whole[:300] + bytes([whole[300] ^ 1]) + whole[301:]
    for content in (b"", whole[: len(whole) // 2], b"x" * 1000, flipped):
        damaged.write_bytes(content)
        with pytest.raises(UnreadableBundle):
            read(compiled, str(damaged), None)
    with zipfile.ZipFile(out) as archive:
        about = json.loads(archive.read("about.json"))
    with zipfile.ZipFile(damaged, "w") as archive:
        archive.writestr("about.json", json.dumps({**about, "format": 99}))
    with pytest.raises(UnreadableBundle, match="format 99"):
        read(compiled, str(damaged), None)


@pytest.mark.parametrize("lost", ["journal", "layers", "rows", "original"])
def test_a_bundle_from_which_something_is_missing(mine, tmp_path, lost):
    out, _ = mine
    less = tmp_path / "less"
    with zipfile.ZipFile(out) as whole, zipfile.ZipFile(less, "w") as part:
        for name in whole.namelist():
            if not name.startswith(lost):
                part.writestr(name, whole.read(name))
    with pytest.raises(UnreadableBundle, match=rf"{lost}.* is missing"):
        read(my_job().compiled, str(less), None)


def test_the_file_is_not_written_over(mine, tmp_path):
    job = my_job()
    (tmp_path / "past.clonos").write_text("precious")
    with pytest.raises(NothingToReplay, match="File exists"):
        bundled(job, simulated(job, 5), tmp_path)
    assert (tmp_path / "past.clonos").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["past.clonos"]


def test_rows_of_a_bundle_keep_their_type(mine):
    out, _ = mine
    branch = Branch(read(my_job().compiled, str(out), None), {})
    assert isinstance(branch.rows("out"), pa.Table)
    assert branch.rows("out").schema == branch.job_rows("out").schema
