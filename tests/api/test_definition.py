from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
from datetime import timedelta
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

import clonos
from clonos.columns.durations import parse_duration
from clonos.errors import (
    BadDuration,
    BadGraph,
    BadSchema,
    BadSize,
    CallError,
    ClonosError,
    DefinitionError,
    OperatorError,
    UnknownColumn,
    WrongType,
)

NOT: Any = 5
NO_PATH: Any = None  # as of an environment variable that is not set
TEXT: Any = "5"
PATH: Any = Path("s3://b/job")
SCHEMA = "word string, n long, t timestamp"


def words(**options):
    return clonos.Job(**options).source(
        clonos.sources.from_batches([], schema=SCHEMA), name="words"
    )


@pytest.mark.parametrize(
    ("text", "ms"),
    [("5 seconds", 5000), ("1 second", 1000), ("200ms", 200), ("1.5 s", 1500),
     ("2 minutes", 120_000),
     ("1 hour", 3_600_000), ("1 day", 86_400_000), (timedelta(seconds=2), 2000), ("3 Secs", 3000)],
)  # fmt: skip
def test_durations(text, ms):
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "5", "five seconds", "-1 s", "0 s", "5 parsecs", None, 7])
def test_bad_durations(text):
    with pytest.raises(BadDuration):
        parse_duration(text)


@pytest.mark.parametrize(
    "text", ["0.4 ms", "1.5 ms", "1.0005 s", timedelta(microseconds=400), timedelta(seconds=1) / 3]
)
def test_parts_of_a_millisecond_are_not_rounded(text):
    with pytest.raises(BadDuration, match="parts of a millisecond"):
        parse_duration(text, minimum_ms=0)


def test_durations_are_exact():
    assert parse_duration("1.1 s") == 1100
    assert parse_duration("100000000000000.001 s") == 100_000_000_000_000_001
    assert parse_duration("2.0 ms") == 2


def _agg(**aggregates):
    return words().key_by("word").window(clonos.tumbling("1 s")).agg(**aggregates)


def _union_of_two_schemas():
    stream = words()
    stream.union(stream.map(lambda r: r.n, "n long"))


async def _asks(row):
    return (row.word,)


class _Idle(clonos.Process):
    def on_timer(self, key, due, ctx):
        yield (key,)


class _Awaiting(clonos.Process):
    async def on_row(self, row, ctx):  # type: ignore[override]
        return [(row.word,)]


def _second_name():
    stream = words()
    stream.filter(bool, name="f")
    stream.filter(bool, name="f")


@pytest.mark.parametrize(
    ("define", "error", "text"),
    [
        (lambda: words().key_by("wrod"), UnknownColumn, "did you mean 'word'"),
        (words().key_by, WrongType, "key_by"),
        (lambda: _agg(s=clonos.sum("word")), WrongType, "sum of column 'word', which is string"),
        (lambda: _agg(s=clonos.avg("t")), WrongType, "avg of column 't'"),
        (lambda: _agg(s=clonos.min("m")), UnknownColumn, "no column 'm'"),
        (lambda: _agg(word=clonos.count()), BadGraph, "two columns 'word'"),
        (lambda: _agg(s=5), WrongType, "not an aggregate"),
        (_agg, WrongType, "without aggregates"),
        (lambda: words().map(lambda r: r, "word strin"), BadSchema, "did you mean 'string'"),
        (lambda: words().map(5, "word string"), WrongType, "not a function"),
        (lambda: words().map(lambda: 1, "word string"), WrongType, "takes 0 arguments"),
        (lambda: words().map(lambda a, b, c: 1, "n int"), WrongType, "takes 3 arguments"),
        (lambda: words().map(_asks, "word string"), WrongType, "use map_async"),
        (lambda: words().key_by("word").process(_Idle(), "w string"), WrongType, "has no on_row"),
        (lambda: words().key_by("word").process(_Awaiting(), "w string"), WrongType,
         r"_Awaiting.on_row is a coroutine function, but .* self.model.ask"),
        (lambda: words().with_watermark("n", "1 s"), WrongType, "not a time"),
        (lambda: words().with_watermark("t", "soon"), BadDuration, "soon"),
        (lambda: words().key_by("word").window("5 s"), WrongType, "not a window"),
        (lambda: words().key_by("word").window(clonos.tumbling("5 s", on="t")), BadGraph,
         "without a watermark"),
        (lambda: words().key_by("word").process(clonos.Process, "n int"), WrongType, "Process"),
        (lambda: words().key_by("word").map_batches(lambda b: b, "n long"), UnknownColumn,
         "key 'word' is lost"),
        (lambda: words().union(words()), BadGraph, "different jobs"),
        (_union_of_two_schemas, WrongType, "a union of"),
        (lambda: words().sink("parquet"), WrongType, "not a sink"),
        (lambda: clonos.sinks.callback(NOT), WrongType, "not a function"),
        (lambda: clonos.sinks.parquet("x", rows_per_file=0), WrongType, "rows_per_file"),
        (lambda: clonos.sinks.parquet(NO_PATH), WrongType, "parquet: path=None"),
        (lambda: clonos.sinks.parquet(PATH), WrongType, 'path=.*"s3://bucket/folder"'),
        (lambda: clonos.sinks.table("s3:/b/job"), WrongType, 'path=.*"s3://bucket/folder"'),
        (lambda: clonos.sinks.spark("delta", PATH), WrongType, 'path=.*"s3://bucket/folder"'),
        (lambda: clonos.sources.files(PATH), WrongType, 'path=.*"s3://bucket/folder"'),
        (lambda: clonos.sources.table(PATH), WrongType, 'path=.*"s3://bucket/folder"'),
        (lambda: clonos.sources.redis(NO_PATH, "a", schema="n int"), WrongType, "redis: url=None"),
        (lambda: clonos.sources.kafka(NO_PATH, "a", value="text"), WrongType, "servers=None"),
        (lambda: clonos.sources.postgres(NO_PATH, "select 1", column="id", schema="n int"),
         WrongType, "postgres: dsn=None"),
        (_second_name, BadGraph, "called 'f'"),
        (lambda: clonos.Job().source([1]), WrongType, "list is not a source"),
        (lambda: clonos.Job(parallelism=0), WrongType, "parallelism=0"),
        (lambda: clonos.Job(name=""), WrongType, "name=''"),
        (lambda: clonos.Job(NOT), WrongType, "name=5"),
        (lambda: clonos.Job(checkpoint_dir=""), WrongType, "checkpoint_dir=''"),
        (lambda: clonos.Job(checkpoint_dir=PATH), WrongType, "give a URI as a text"),
        (lambda: clonos.Job(local_dir=NOT), WrongType, "local_dir=5"),
        (lambda: clonos.Job(local_dir="s3://b/job"), WrongType, "local_dir='s3://b/job'"),
        (lambda: clonos.Job(bundle_redact=NOT), WrongType, "bundle_redact=5"),
        (lambda: clonos.Job(speculation=NOT), WrongType, "speculation=5"),
        (lambda: clonos.Job(guarantee=NOT), WrongType, "guarantee"),
        (lambda: clonos.Job(checkpoints=NOT), WrongType, "checkpoints"),
        (lambda: clonos.Job(inflight=NOT), WrongType, "'spill' or 'memory'"),
        (lambda: clonos.Job(inflight_bytes="much"), BadSize, "not a size"),
        (lambda: clonos.Job(inflight_bytes="1 MB"), WrongType, "less than 1 MiB"),
        (lambda: clonos.Job(log_bytes="1 MB"), WrongType, "log_bytes='1 MB' is less than 1 MiB"),
        (lambda: clonos.Job(checkpoints="uncoordinated", guarantee="at_least_once"), WrongType,
         "without logs only marked checkpoints fit together"),
        (lambda: clonos.Job(checkpoints="uncoordinated", guarantee="at_most_once"), WrongType,
         "without logs only marked checkpoints fit together"),
        (lambda: clonos.Job(speculation=True, guarantee="at_most_once"), WrongType,
         "a rival would do rows again or lose them"),
        (lambda: clonos.Job(history="1 hour", guarantee="at_most_once"), WrongType,
         "the past cannot be replayed"),
        (lambda: words(sharing_depth=-1), WrongType, "sharing_depth"),
        (lambda: words(sharing_depth="all"), WrongType, "sharing_depth"),
        (lambda: words().filter(bool, parallelism=1000), WrongType, "128"),
        (lambda: words()._job.source(clonos.sources.socket_lines("h", 1), parallelism=2), BadGraph,
         "cannot be shared out"),
        (lambda: clonos.sources.from_batches([[(1, 2)]], schema="n int"), WrongType, "not rows"),
        (lambda: clonos.sources.from_batches([[("a",)]], schema="n int"), WrongType, "column 'n'"),
        (lambda: clonos.sources.from_batches([("a", 1)], schema="s string, n int"), WrongType,
         "list of batches"),
        (lambda: clonos.sources.from_batches([[("a",)]]), BadSchema, "without a schema"),
        (lambda: clonos.sources.rate(0), WrongType, "rows_per_second=0"),
        (lambda: clonos.sources.rate(float("nan")), WrongType, "rows_per_second=nan"),
        (lambda: clonos.sources.rate(TEXT), WrongType, "rows_per_second='5'"),
        (lambda: clonos.sources.rate(5, rows=-1), WrongType, "rows=-1"),
        (lambda: clonos.Job().source(clonos.sources.rate(5), rows_per_second=TEXT), WrongType,
         "rows_per_second='5'"),
        (lambda: clonos.Job().compile(), BadGraph, "no sink"),
    ],
)  # fmt: skip
def test_mistakes_are_found_where_they_are_made(define, error, text):
    with pytest.raises(error, match=text) as caught:
        define()
    assert isinstance(caught.value, DefinitionError)


def _passes(row, ctx):
    yield (row.word,)


def _adapts(fn):
    @functools.wraps(fn)
    def wrapper(self, row, ctx):
        return fn(self, row)

    return wrapper


class _Own(clonos.Process):
    """With methods that are given; those of a base class may be called."""

    def on_row(self, row, ctx):
        yield (row.word,)


METHODS = [
    ("open", lambda self: None, r"_Own.open takes \(\).*write it as open\(self, ctx\)"),
    ("open", lambda self, ctx, more: None, r"takes \(ctx, more\)"),
    ("on_row", lambda self, row: None, r"takes \(row\).*on_row\(self, row, ctx\)"),
    ("on_row", lambda self, row, *, ctx: None, r"takes \(row, \*, ctx\)"),
    ("on_timer", lambda self, key, ctx: None, r"on_timer\(self, key, due, ctx\)"),
    ("on_timer", staticmethod(lambda self, key, due, ctx: None), "self, key, due, ctx"),
    ("open", lambda self, ctx, more=None: None, ""),
    ("open", classmethod(lambda cls, ctx: None), ""),
    ("open", print, ""),
    ("open", type("Any", (), {"__call__": lambda self, *given: None})(), ""),
    ("on_row", lambda *given: None, ""),
    ("on_row", staticmethod(_passes), ""),
    ("on_row", functools.partial(lambda more, row, ctx: None, 1), ""),
    ("on_row", functools.partialmethod(lambda self, more, row, ctx: None, 1), ""),
    ("on_row", _adapts(lambda self, row: None), ""),
    ("on_timer", max, ""),
    ("on_timer", lambda self, key, due, ctx, **more: None, ""),
]


@pytest.mark.parametrize(("name", "method", "text"), METHODS)
def test_methods_of_a_process_take_what_they_get(name, method, text):
    made = type("_Own", (_Own,), {name: method})()
    with pytest.raises(WrongType, match=text) if text else contextlib.nullcontext():
        words().key_by("word").process(made, "w string", name="own")


def test_what_is_printed_says_what_it_is():
    job = clonos.Job("shop", parallelism=2)
    assert repr(job) == "<Job 'shop', parallelism 2: nothing yet>"
    stream = job.source(clonos.sources.from_batches([], schema="word string, n long"))
    assert repr(stream) == "Stream[word: string, n: bigint]"
    assert repr(stream.key_by("word")) == "KeyedStream[word: string, n: bigint] by word"
    assert repr(job) == "<Job 'shop', parallelism 2: batches>"


def test_what_to_do_is_a_sentence_of_its_own():
    with pytest.raises(UnknownColumn) as raised:
        words().key_by("wrod")
    assert str(raised.value) == (
        "key_by: there is no column 'wrod'. To do: did you mean 'word'? the columns are word, n, t"
    )
    assert str(WrongType("Is it there?", remedy="look")) == "Is it there? To do: look"


def test_schemas():
    result = _agg(total=clonos.sum("n"), mean=clonos.avg("n"), hi=clonos.max("word"))
    assert [f"{field.name} {field.type}" for field in result.schema] == [
        "word string", "window_start timestamp[us, tz=UTC]", "window_end timestamp[us, tz=UTC]",
        "total int64", "mean double", "hi string",
    ]  # fmt: skip


def test_names():
    job = clonos.Job()
    stream = job.source(clonos.sources.from_batches([], schema=SCHEMA))
    stream = stream.filter(bool).filter(bool, name="mine").filter(bool)
    stream.sink(clonos.sinks.collect())
    code = job.compile().codes[0]
    assert [name for name, _ in code.operators] == [
        "batches",
        "filter",
        "mine",
        "filter_2",
        "collect",
    ]
    assert code.task.name == "mine[0]"
    assert _agg(name=clonos.count()).schema.names[-1] == "name"


def test_event_time_is_known_through_other_operators():
    stream = words().with_watermark("t", "1 s").filter(bool).union()
    stream.key_by("word").window(clonos.tumbling("1 s", on="t")).agg(n=clonos.count())


def test_public_names():
    for name in clonos.__all__:
        assert getattr(clonos, name) is not None
    for package in (clonos, clonos.causal, clonos.sinks, clonos.sources, clonos.testing):
        assert sorted(package.__all__) == dir(package)  # what an editor offers
    with pytest.raises(AttributeError, match="nothing"):
        _ = clonos.nothing


def test_errors_can_be_shipped():
    for error in (OperatorError("x", where="w", remedy="r"), CallError("T", "m")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)


@pytest.mark.parametrize("package", [clonos.sinks, clonos.sources], ids=lambda each: each.__name__)
def test_no_module_takes_the_name_of_a_users_word(package):
    modules = {module.name for module in iter_modules(package.__path__)}
    assert modules  # importing one sets an attribute of that name, whatever was there before
    assert modules.isdisjoint(package.__all__)
    assert all(callable(getattr(package, word)) for word in package.__all__)


ARGUMENTS: dict[Any, tuple[Any, ...]] = {
    clonos.sources.socket_lines: ("host", 1),
    clonos.sources.files: ("/nowhere",),
    clonos.sources.table: ("/nowhere", "a string"),
    clonos.sources.kafka: ("a:1", "t"),
    clonos.sources.rate: (1,),
    clonos.sources.from_batches: ([],),
    clonos.sources.redis: ("redis://host", "s"),
    clonos.sources.postgres: ("host=db", "select 1"),
    clonos.sources.webhook: (8080,),
    clonos.sources.mqtt: ("host", "t"),
    clonos.sources.websocket: ("ws://host",),
    clonos.sinks.parquet: ("/nowhere",),
    clonos.sinks.table: ("/nowhere",),
    clonos.sinks.spark: ("delta", "/nowhere"),
    clonos.sinks.postgres: ("host=db", "t"),
    clonos.sinks.kafka: ("a:1", "t"),
    clonos.sinks.http: ("http://host",),
    clonos.sinks.transactional: (),
}
NEEDED: dict[Any, dict[str, Any]] = {
    clonos.sources.redis: {"schema": "a string"},
    clonos.sources.postgres: {"column": "a", "schema": "a string"},
    clonos.sources.mqtt: {"client_id": "c", "value": "text"},
    clonos.sources.kafka: {"value": "text"},
    clonos.sources.webhook: {"value": "text"},
    clonos.sources.websocket: {"value": "text"},
    clonos.sources.from_batches: {"schema": "a string"},
    clonos.sinks.transactional: {"open": len, "last_key": len, "write": len},
}


@pytest.mark.parametrize("define", ARGUMENTS, ids=lambda define: define.__qualname__)
@pytest.mark.parametrize(
    "wrong",
    [5, 2.5, "", None, [5], {"a": 5}, object()],
    ids=["int", "float", "empty", "none", "list", "dict", "object"],
)
def test_arguments_of_a_wrong_type_are_refused_by_name(define, wrong):
    """Whatever is given for any of them: it is good, or the error is one of ours."""
    places = inspect.signature(define).parameters
    for n, (name, place) in enumerate(places.items()):
        if place.kind is place.VAR_KEYWORD:
            continue
        given, named = list(ARGUMENTS[define]), dict(NEEDED.get(define, {}))
        if n < len(given):
            given[n] = wrong
        else:
            named[name] = wrong
        with contextlib.suppress(ClonosError):
            define(*given, **named)


def test_a_wrong_argument_is_named_and_a_secret_is_not_shown():
    with pytest.raises(WrongType, match=r"websocket: subscribe=5\. To do: give a text or a list"):
        clonos.sources.websocket("ws://host", subscribe=5, value="text")  # type: ignore[arg-type]
    with pytest.raises(WrongType, match=r"webhook: token=\.\.\."):
        clonos.sources.webhook(80, token=b"secret", value="text")  # type: ignore[arg-type]
