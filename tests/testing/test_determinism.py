"""Whoever does not do the same twice is found, with the reason; whoever does is left alone."""

from __future__ import annotations

from pathlib import Path
from random import Random
from threading import Lock

import pyarrow as pa
import pytest

import clonos
from clonos.cli import main
from clonos.errors import DefinitionError, OperatorError
from clonos.testing import CannotSimulate, NotDeterministic, check_deterministic
from clonos.testing.determinism.runs import other_cuts
from clonos.testing.harness import Batches, End, Event, Source, Watermark, rows
from tests.testing import shaky

FOUND = {
    "of_a_set": ("again", "row 1 differs in 'user'", ""),
    "by_identity": ("again", "'cents'", "id: "),
    "by_clock": ("again", "'cents'", "time.time: "),
    "by_day": ("again", "'user'", "datetime.today: "),
    "by_chance": ("again", "'cents'", "the random module: "),
    "by_numpy": ("again", "'cents'", "numpy.random: "),
    "by_uuid": ("again", "'user'", "uuid.uuid4: "),
    "by_urandom": ("again", "'user'", "os.urandom: "),
    "by_environment": ("again", "then 'Pacific/Pago_Pago'", "os.environ: "),
    "counted": ("restored", "'cents'", ""),
    "seen": ("restored", "'cents'", ""),
    "float_sum": ("again", "'cents'", ""),
    "asked_at_will": ("again", "row 1 differs in 'cents': first 6, then 0", "os.environ: "),
    "ending": ("died", "exit code 7", ""),
    "Forgetful": ("restored", "'cents'", ""),
    "Disorderly": ("again", "state 'words' of key 'user 0' differs: first ['", ""),
    "sum_of_batch": ("cuts", "'cents'", ""),
}
"""By operator: what kind of run differs, what is said of it, and what is asked for."""
SERVICES = {shaky.ask: len}


def failing(job, **options):
    with pytest.raises(NotDeterministic) as caught:
        check_deterministic(job, **options)
    return caught.value


def test_each_reason_is_named_and_nobody_else_is_accused():
    told = []
    failed = failing(
        shaky.many(), services=SERVICES, restores=1, watch=lambda *one: told.append(one)
    )
    findings = {finding.operator: finding for finding in failed.findings}
    assert findings.keys() == FOUND.keys()
    for name, (kind, what, asked) in FOUND.items():
        finding = findings[name]
        assert (finding.kind, finding.task) == (kind, f"{name}[0]")
        assert what in finding.what
        assert any(line.startswith(asked) for line in finding.asked) == bool(asked), finding.asked
        if asked:
            assert f"shaky.py:{line_of(name)}, in {name}: " in "".join(finding.asked)
    assert str(failed).startswith("shaky: 17 operators do not do the same twice")
    assert [name for name, finding in told if finding is None] == [
        "payments", *(good.__name__ for good in shaky.GOOD), "Total", "union", "out"
    ]  # fmt: skip
    assert len(told) == len(findings) + 9


def line_of(function):
    """The line of its body."""
    lines = Path(shaky.__file__).read_text("utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 2) if line.startswith(f"def {function}("))


def test_a_job_that_does_the_same_passes_and_says_what_it_asks_for():
    checked = check_deterministic(
        shaky.many(shaky.GOOD, [shaky.Total], batches=False), services=SERVICES, restores=1
    )
    assert checked.notes.keys() == {"timed"}
    assert "time.perf_counter: " in checked.notes["timed"][0]
    assert checked.same_cuts == ["of_ctx"]
    assert "the same each time" in str(checked)
    assert "nothing differed" in str(checked)


def test_a_function_that_opens_a_connection_gets_none():
    (finding,) = failing(shaky.many([shaky.connecting], [], batches=False)).findings
    assert finding.kind == "refused"
    assert "'127.0.0.1'" in finding.what
    assert "in connecting: with socket.create_connection" in finding.what


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(CannotSimulate, match="nothing stands in for it"):
        check_deterministic(shaky.many([shaky.asked], [], batches=False))
    with pytest.raises(OperatorError, match="division") as failed:
        check_deterministic(shaky.many([shaky.failing], [], batches=False))
    assert "in failing" in failed.value.trace
    job = clonos.Job()
    lines = job.source(clonos.sources.from_batches([[("a",)]], "value string"))
    lock = Lock()
    lines.filter(lambda _: lock.locked()).sink(clonos.sinks.collect())
    with pytest.raises(DefinitionError, match="cannot be sent"):
        check_deterministic(job)


@pytest.mark.parametrize("function", [shaky.hanging, shaky.matching])
def test_a_function_that_never_returns_is_named(function):
    """Also while a library, such as that for regular expressions, holds Python's lock."""
    with pytest.raises(OperatorError, match=r"has not returned for 0\.5 s") as stuck:
        check_deterministic(shaky.many([function], [], batches=False), timeout="500 ms")
    assert stuck.value.where == f"{function.__name__}[0]"
    assert f"in {function.__name__}" in stuck.value.trace
    assert "shaky.py" in stuck.value.trace
    assert "--timeout" in stuck.value.remedy


def test_a_function_that_hangs_in_another_process_is_a_finding():
    job = shaky.many([shaky.hanging_elsewhere], [], batches=False)
    (finding,) = failing(job, timeout="500 ms").findings
    assert (finding.kind, finding.task) == ("stuck", "hanging_elsewhere[0]")
    assert "in hanging" in finding.what


def test_the_command_says_who_fails_and_ends_with_1(capsys):
    command = ["check", "tests.testing.shaky:command_job", "--restores", "1"]
    assert main(command) == 1
    said = capsys.readouterr().out
    assert "ok    steady\n" in said
    assert "ok    timed\n" in said
    assert "FAIL  by_uuid\n      by_uuid[0]: the same rows in another process: row 1" in said
    assert said.endswith("1 operator does not do the same twice\n")
    assert main(["check", "tests.testing.shaky:nothing"]) == 2
    assert "there is no 'tests.testing.shaky:nothing'" in capsys.readouterr().err


def test_other_cuts_have_the_same_rows_in_the_same_order():
    def batch(*numbers):
        return pa.RecordBatch.from_pydict({"n": list(numbers)})

    events: list[tuple[int, Event]] = [
        (1, Batches(0, (batch(1, 2), batch(3)))),
        (2, Batches(0, (batch(4, 5),), 7)),  # its watermark stays behind these rows
        (3, Batches(0, (batch(6, 7, 8, 9),))),
        (4, Batches(1, (batch(10),))),
        (5, Watermark(1, 9)),
        (6, Batches(1, (batch(11),))),
        (7, End(1)),
    ]
    for seed in range(20):
        cut = [event for _, event in other_cuts(events, Random(seed))]
        assert flat(cut) == flat(event for _, event in events)
    sources: list[tuple[int, Event]] = [(1, Source(batch(*range(20))))]
    assert len([*other_cuts(sources, Random(1))]) == 2


def flat(events):
    """Rows with their channel, and all else where it was."""
    found: list[object] = []
    for event in events:
        if isinstance(event, Batches):
            found += [(event.channel, row) for one in event.batches for row in rows(one)]
            found += [] if event.watermark_ms is None else [event.watermark_ms]
        else:
            found.append(event)
    return found


def test_what_is_folded_before_a_shuffle_may_depend_on_batches():
    job = clonos.Job("counted")
    batches = [[(f"u{n % 2}", n, n)] for n in range(8)]
    source = clonos.sources.from_batches(batches, "user string, cents long, at long")
    words = job.source(source, name="payments")
    windows = words.key_by("user").window(clonos.tumbling("1 hour"))
    windows.agg(n=clonos.count(), name="counts").sink(clonos.sinks.collect(), name="out")
    assert check_deterministic(job).operators
