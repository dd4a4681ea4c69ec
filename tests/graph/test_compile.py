from __future__ import annotations

from datetime import datetime, timezone

import pytest

import clonos
from clonos.core.plan import FULL_DEPTH, HOUSE_KEEPER, ChannelSpec
from clonos.errors import BadGraph
from clonos.operators.router import Routing
from clonos.testing import StepHarness, rows, task_code

cloudpickle = pytest.importorskip("pyspark.cloudpickle")

SCHEMA = "k string, n long"


def source(job, name="in", **options):
    return job.source(clonos.sources.from_batches([], schema=SCHEMA), name=name, **options)


def wordcount(**options):
    job = clonos.Job("wordcount", parallelism=2, **options)
    words = source(job).map(lambda r: r, SCHEMA).filter(lambda r: r.n > 0)
    counts = words.key_by("k").window(clonos.tumbling("5 s")).agg(n=clonos.sum("n"), name="count")
    counts.map(lambda r: (r.k, r.n), SCHEMA).sink(clonos.sinks.collect(), name="out")
    return job.compile()


def test_neighbours_are_fused():
    compiled = wordcount()
    assert [task.name for task in compiled.plan.tasks] == [
        "in[0]", "in[1]", "count[0]", "count[1]"
    ]  # fmt: skip
    assert [[name for name, _ in code.operators] for code in compiled.codes[::2]] == [
        ["in", "map", "filter", "count_partial"],
        ["count", "map_2", "out"],
    ]
    assert [task.sink for task in compiled.plan.tasks] == [None, None, "out", "out"]
    assert list(compiled.sinks) == ["out"]


def test_a_chain_goes_from_source_to_sink_unless_told_otherwise():
    def names(end):
        job = clonos.Job(parallelism=2)
        end(source(job).map(lambda r: r, SCHEMA, name="f"))
        return [code.task.name for code in job.compile().codes]

    out = clonos.sinks.collect()
    assert names(lambda f: f.sink(out, name="out")) == ["in[0]", "in[1]"]
    assert names(lambda f: f.sink(out, name="out", parallelism=1)) == ["in[0]", "in[1]", "out[0]"]
    apart = names(lambda f: f.start_new_chain().sink(out, name="out"))
    assert apart == ["in[0]", "in[1]", "out[0]", "out[1]"]
    twice = names(lambda f: (f.sink(out, name="a"), f.sink(out, name="b")))
    assert twice == ["in[0]", "in[1]", "a[0]", "a[1]", "b[0]", "b[1]"]


def test_a_new_chain_keeps_its_keys():
    job = clonos.Job(parallelism=2)
    filtered = source(job).key_by("k").filter(lambda r: True, name="f")
    filtered.start_new_chain().map(lambda r: r, SCHEMA, name="g").sink(clonos.sinks.collect())
    compiled = job.compile()
    assert [code.task.name for code in compiled.codes[2:]] == ["f[0]", "f[1]", "g[0]", "g[1]"]
    assert [o.routing for o in task_code(compiled, "f[0]").routers] == [Routing.FORWARD]
    apart = filtered.start_new_chain().window(clonos.tumbling("5 s")).agg(n=clonos.count())
    assert apart.schema.names == ["k", "window_start", "window_end", "n"]
    filtered.start_new_chain().deduplicate()


def test_a_new_chain_begins_before_what_is_done_ahead_of_a_shuffle():
    job = clonos.Job(parallelism=2)
    keyed = source(job).start_new_chain().key_by("k").window(clonos.tumbling("5 s"))
    keyed.agg(n=clonos.count(), name="count").sink(clonos.sinks.collect())
    names = [[name for name, _ in code.operators] for code in job.compile().codes[::2]]
    assert names == [["in"], ["count_partial"], ["count", "collect"]]


def test_a_chain_is_not_called_like_its_sink():
    job = clonos.Job()
    rows = job.source(clonos.sources.from_batches([], schema=SCHEMA))
    rows.sink(clonos.sinks.collect(), name="out")
    (code,) = job.compile().codes
    assert (code.task.name, code.source_name, code.task.sink) == ("batches[0]", "batches", "out")


def test_plan_is_consistent():
    compiled = wordcount()
    plan = compiled.plan
    for i, task in enumerate(plan.tasks):
        assert task.id == i
        for channel in task.inputs:
            assert plan.channels[channel].receiver == i
        for channel in task.outputs:
            assert plan.channels[channel].sender == i
        assert set(compiled.codes[i].schemas) == {*task.inputs, *task.outputs}
    assert [channel.id for channel in plan.channels] == list(range(len(plan.channels)))
    assert set(compiled.schemas) == set(range(len(plan.channels)))
    assert [task.is_source for task in plan.tasks] == [True] * 2 + [False] * 2
    assert [task.is_sink for task in plan.tasks] == [False] * 2 + [True] * 2


@pytest.mark.parametrize("depth", [0, 1, 2, 3, "full"])
@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once", "at_most_once"])
def test_channels_to_the_house_keeper(depth, guarantee):
    plan = wordcount(sharing_depth=depth, guarantee=guarantee).plan
    assert plan.sharing_depth == (FULL_DEPTH if depth == "full" else depth)
    assert plan.causal_log == (guarantee == "exactly_once")
    assert plan.leaves_gaps == (guarantee == "at_most_once")
    for task in plan.tasks:
        out = [c for c in task.outputs if plan.channels[c].receiver == HOUSE_KEEPER]
        wanted = task.is_sink or plan.forwarded_logs(ChannelSpec(-1, task.id, HOUSE_KEEPER))
        assert out == (list(task.outputs[-1:]) if wanted else [])


def test_sources_that_cannot_replay_are_gated():
    job = clonos.Job(parallelism=2, sharing_depth="full")
    lines = job.source(clonos.sources.socket_lines("localhost", 1), name="lines")
    lines.sink(clonos.sinks.collect(), name="out")
    plan = job.compile().plan
    (task,) = plan.tasks
    assert task.is_gated
    assert task.is_sink
    assert plan.channels[task.outputs[-1]].receiver == HOUSE_KEEPER


def test_programs_do_not_emit_to_the_house_keeper_unless_they_are_sinks():
    compiled = wordcount(sharing_depth=0)
    for code in compiled.codes:
        emitted = [c for router in code.routers for c in router.channels]
        to_world = [c for c in emitted if compiled.plan.channels[c].receiver == HOUSE_KEEPER]
        assert to_world == (list(code.task.outputs) if code.task.is_sink else [])


def test_routing_and_parallelism():
    job = clonos.Job(parallelism=2)
    stream = source(job, parallelism=3)
    stream = stream.map(lambda r: r, SCHEMA, name="narrow", parallelism=1)
    stream = stream.broadcast().filter(lambda r: True, name="all")
    stream.key_by("k").filter(lambda r: True, name="keyed", parallelism=4).sink(
        clonos.sinks.collect(), name="out"
    )
    compiled = job.compile()
    routing = {code.task.name: [o.routing for o in code.routers] for code in compiled.codes}
    assert routing["in[2]"] == [Routing.ROUND_ROBIN]
    assert routing["narrow[0]"] == [Routing.BROADCAST]
    assert routing["all[1]"] == [Routing.HASH]
    assert routing["keyed[3]"] == [Routing.FORWARD]
    assert len(task_code(compiled, "all[1]").routers[0].channels) == 4
    assert [code.task.sink for code in compiled.codes][-4:] == ["out"] * 4


def test_keyed_operators_stay_in_one_chain():
    job = clonos.Job(parallelism=2)
    keyed = source(job).key_by("k").filter(lambda r: True, name="f").map_batches(lambda b: b)
    keyed.window(clonos.tumbling("1 s")).agg(n=clonos.count()).sink(clonos.sinks.collect())
    names = [[name for name, _ in code.operators] for code in job.compile().codes]
    assert names[2] == ["f", "map_batches", "window", "collect"]


def test_a_stream_that_is_used_twice_ends_its_chain():
    job = clonos.Job()
    stream = source(job).filter(lambda r: True, name="f")
    left = stream.map(lambda r: r, SCHEMA, name="left")
    left.union(stream, name="both").sink(clonos.sinks.collect(), name="out")
    compiled = job.compile()
    assert [task.name for task in compiled.plan.tasks] == ["in[0]", "left[0]", "both[0]"]
    both = task_code(compiled, "both[0]")
    ports = [compiled.plan.channels[c].port for c in both.task.inputs]
    assert sorted(ports) == [0, 1]
    harness = StepHarness(task_code(compiled, "in[0]").program())
    assert len(harness.source([("a", 1)], SCHEMA).batches) == 2


def test_only_what_leads_to_a_sink_runs():
    job = clonos.Job()
    stream = source(job)
    stream.map(lambda r: r, SCHEMA, name="unused")
    with pytest.raises(BadGraph, match="no sink"):
        job.compile()
    stream.sink(clonos.sinks.collect(), name="out")
    assert [task.name for task in job.compile().plan.tasks] == ["in[0]"]


def test_same_key_goes_to_same_task_and_nothing_is_lost():
    compiled = wordcount()
    seen: dict[str, int] = {}
    given = [(f"k{i % 20}", i + 1) for i in range(100)]
    arrived = 0
    for name in ("in[0]", "in[1]"):
        harness = StepHarness(task_code(compiled, name).program())
        for channel, batch in harness.source(given, SCHEMA).batches.items():
            receiver = compiled.plan.channels[channel].receiver
            for k, *_, total, _, _ in rows(batch):  # folded before the shuffle
                assert seen.setdefault(k, receiver) == receiver
                arrived += total
    assert arrived == 2 * sum(n for _, n in given)
    assert set(seen.values()) == {2, 3}


def test_code_is_shipped_and_programs_are_fresh():
    class Count(clonos.Process):
        def __init__(self):
            self.opened = 0

        def open(self, ctx):
            self.opened += 1
            self.seen = ctx.state("seen", "long")

        def on_row(self, row, ctx):
            self.seen.set(self.seen.get(0) + 1)
            return [(row.k, self.seen.get() * self.opened)]

    job = clonos.Job()
    source(job).key_by("k").process(Count(), SCHEMA, name="p").sink(clonos.sinks.collect())
    code = cloudpickle.loads(cloudpickle.dumps(task_code(job.compile(), "p[0]")))
    for _ in range(2):
        harness = StepHarness(code.program())
        assert rows(harness.input(0, [("a", 0), ("a", 0)], SCHEMA).batches[1]) == [
            ("a", 1), ("a", 2)
        ]  # fmt: skip


def test_dataframes_are_not_shipped():
    class Frame:
        schema = SCHEMA
        isStreaming = False  # noqa: N815 - Spark's
        mapInArrow = None  # noqa: N815 - Spark's

        def __reduce__(self):
            raise AssertionError("shipped")

    job = clonos.Job()
    job.source(Frame(), name="df").sink(clonos.sinks.collect())
    code = job.compile().codes[0]
    assert code.source is not None
    assert isinstance(code.source.dataframe, Frame)
    shipped = cloudpickle.loads(cloudpickle.dumps(code))
    assert shipped.source.dataframe is None
    assert shipped.source.factory is None
    assert shipped.source.kind == "dataframe"


@pytest.mark.parametrize("second", ["/data/out/", "file:///data/out"])
def test_two_sinks_of_one_folder(second):
    job = clonos.Job("twice")
    rows = source(job)
    rows.sink(clonos.sinks.table("/data/out"), name="a")
    rows.sink(clonos.sinks.parquet(second), name="b")
    with pytest.raises(BadGraph, match="'a' and 'b' write to the same folder"):
        job.compile()


def _postgres_job(shape, **sink):
    job = clonos.Job(parallelism=2)
    rows = job.source(clonos.sources.from_batches([], "id long, word string"), name="rows")
    target = clonos.sinks.postgres("postgresql://db.example/shop", "t", **sink)
    shape(rows).sink(target, name="out")
    return job


@pytest.mark.parametrize(
    "shape",
    [
        lambda rows: rows,
        lambda rows: rows.key_by("word"),
        lambda rows: rows.key_by("id").rebalance(),
    ],
)
def test_an_upsert_by_columns_that_the_stream_is_not_keyed_by(shape):
    with pytest.warns(UserWarning, match=r"key_by\('id'\)"):
        _postgres_job(shape, upsert="id").compile()
    _postgres_job(shape).compile()


@pytest.mark.parametrize(
    "shape",
    [
        lambda rows: rows.key_by("id"),
        lambda rows: rows.key_by("id").filter(lambda row: row.id > 1),
        lambda rows: rows.key_by("id").window(clonos.tumbling("1 s")).agg(n=clonos.count()),
    ],
)
def test_an_upsert_by_the_streams_key(shape):
    job = _postgres_job(shape, upsert="id")
    assert job.compile().plan.tasks[-1].writes_itself


def test_two_sinks_of_one_table():
    job = _postgres_job(lambda rows: rows)
    more = job.source(clonos.sources.from_batches([], "id long"), name="more")
    more.sink(clonos.sinks.postgres("host=db.example dbname=shop", "t"), name="again")
    with pytest.raises(BadGraph, match="table t of db"):
        job.compile()


@pytest.mark.parametrize(
    ("on", "waits"), [({"on": "t"}, True), ({}, False)], ids=["event time", "processing time"]
)
def test_tasks_whose_rows_wait_for_watermarks(on, waits):
    job = clonos.Job("waits")
    stream = job.source(clonos.sources.from_batches([], schema="k string, t timestamp"), name="in")
    stream = stream.with_watermark("t", "1 s")
    counts = stream.key_by("k").window(clonos.tumbling("1 s", **on)).agg(n=clonos.count(), name="n")
    counts.sink(clonos.sinks.collect(), name="out")
    flags = {task.operator: task.waits_for_time for task in job.compile().plan.tasks}
    assert flags == {"in": False, "n": waits}


def pay(account, *, call):
    return account


def found(account):
    return account


PAYS = {
    "asks": found,
    "recognised": clonos.effect(pay, idempotent=True),
    "checked": clonos.effect(pay, check=found),
}


@pytest.mark.parametrize(
    ("names", "needed"),
    [
        (["asks"], False),
        (["recognised"], False),
        (["recognised", "asks"], False),
        (["checked"], True),
        (["recognised", "checked"], True),
    ],
)
def test_effects_that_services_recognise_need_no_mandate(names, needed):
    job = clonos.Job("pays")
    stream = source(job)
    for name in names:
        stream = stream.with_column_async(f"{name} string", PAYS[name], "k", name=name)
    stream.sink(clonos.sinks.collect(), name="out")
    plan = job.compile().plan
    assert plan.has_effects is (names != ["asks"])
    assert plan.needs_mandates is needed


def test_nobody_knows_before_it_runs_which_effects_a_process_makes():
    class Pays(clonos.Process):
        def on_row(self, row, ctx):
            yield row

    job = clonos.Job("pays")
    paid = source(job).key_by("k").process(Pays(), SCHEMA, effects=True)
    paid.sink(clonos.sinks.collect(), name="out")
    assert job.compile().plan.needs_mandates


@pytest.mark.parametrize("options", [{"keep": "10 s", "on": ("t", "at")}, {}], ids=["10 s", "ever"])
def test_a_join_waits_for_watermarks_if_its_rows_are_dropped_by_them(options):
    job = clonos.Job("joins")
    left, right = (
        job.source(clonos.sources.from_batches([], schema=schema)).with_watermark(time, "1 s")
        for schema, time in (("k string, t timestamp", "t"), ("key string, at timestamp", "at"))
    )
    pairs = left.key_by("k").join(right.key_by("key"), name="pairs", **options)
    pairs.sink(clonos.sinks.collect(), name="out")
    flags = {task.operator: task.waits_for_time for task in job.compile().plan.tasks}
    assert flags["pairs"] is bool(options)


@pytest.mark.parametrize(
    "source",
    [
        lambda start: clonos.sources.kafka("host:9092", "a", schema="n long", start=start),
        lambda start: clonos.sources.redis("redis://host", "a", schema="n long", start=start),
    ],
    ids=["kafka", "redis"],
)
def test_the_latest_rows_need_a_log_or_no_promise(source):
    """Without a log, a source that dies before its first checkpoint begins later than it did."""
    for guarantee in ("exactly_once", "at_most_once", "at_least_once"):
        for start in ("latest", "earliest", datetime(2030, 5, 4, tzinfo=timezone.utc)):
            job = clonos.Job(guarantee=guarantee)
            job.source(source(start), name="rows").sink(clonos.sinks.collect())
            if (guarantee, start) == ("at_least_once", "latest"):
                with pytest.raises(BadGraph, match="'latest' loses rows"):
                    job.compile()
            else:
                assert job.compile().plan.leaves_gaps == (guarantee == "at_most_once")
