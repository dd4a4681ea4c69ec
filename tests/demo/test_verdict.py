"""The judge is judged: a good output passes, and every kind of fault is found by its name."""

from __future__ import annotations

import io
import json
from collections import Counter
from datetime import datetime, timedelta, timezone

import pytest
from rich.console import Console

from examples.demo.run import dataframe
from examples.demo.verdict import FAULTS, OUTPUT_SCHEMA, verdict
from examples.demo.words import words_of

pytestmark = pytest.mark.spark

LINES = ["It is a truth, universally", "a Truth is a TRUTH: don't!", "", "42"]
REPEATS = 3
NOON = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def spark(shared_spark):
    shared_spark.conf.set("spark.sql.codegen.wholeStage", "false")
    shared_spark.conf.set("spark.sql.adaptive.enabled", "false")
    return shared_spark


class Run:
    """A faultless run in miniature: one call per pass over the text, one window per call."""

    def __init__(self):
        self.rows = []
        self.journal = []
        occurrences = Counter(word for line in LINES for word in words_of(line))
        for n in range(REPEATS):
            nonce, start = f"n{n}", NOON + timedelta(seconds=n)
            words = sorted(occurrences)
            banned = words[n : n + 2]
            self.journal.append(entry(100.0 + n, nonce, f"k{n}", words, banned))
            for word, seen in occurrences.items():
                kept = 0 if word in banned else seen
                self.rows.append([word, nonce, start, start + timedelta(seconds=1), kept, seen])
        # A call whose caller died before it used the answer: no fault.
        self.journal.insert(
            0, {**json.loads(json.dumps(self.journal[0])), "time": 99.0, "nonce": "unused"}
        )

    def row(self, word, nonce="n0"):
        return next(row for row in self.rows if row[0] == word and row[1] == nonce)

    def judged(self, spark, path):
        text = [e if isinstance(e, str) else json.dumps(e) for e in self.journal]
        path.write_text("\n".join(text) + "\n")
        output = spark.createDataFrame([tuple(row) for row in self.rows], OUTPUT_SCHEMA)
        return verdict(spark, output, LINES, REPEATS, path)


def entry(time, nonce, key, words, banned):
    return {"time": time, "nonce": nonce, "key": key, "words": words, "banned": banned}


def give_two_requests_one_key(run):
    first, second = run.journal[-2:]
    first["words"] = [*first["words"], "another"]
    second["key"] = first["key"]
    return {"mistaken": 1, "called_again": 1, "half_used": 1}


def lose_a_row(run):
    run.rows.remove(run.row("truth"))
    return {"lost": 3, "half_used": 1}


def lose_an_occurrence(run):
    row = run.row("universally", "n1")
    row[4:] = [0, 0]
    return {"lost": 1, "malformed": 1}


def lose_everything(run):
    run.rows = []
    return {"lost": 3 * 11}


def deliver_a_row_twice(run):
    run.rows.append(list(run.row("truth")))
    return {"twice": 3 + 1}


def count_in_two_windows(run):
    row = list(run.row("truth"))
    row[2] += timedelta(minutes=1)
    run.rows.append(row)
    return {"twice": 3}


def count_an_unknown_word(run):
    row = list(run.row("truth"))
    row[0] = "lie"
    run.rows.append(row)
    return {"twice": 3, "never_asked": 1}


def deliver_other_content(run):
    row = list(run.row("truth", "n2"))
    row[4:] = [0, 3]
    run.rows.append(row)
    return {"twice": 3, "changed": 1, "contradicted": 1}


def swap_the_loss_of_one_for_the_double_of_another(run):
    run.rows.remove(run.row("truth", "n1"))
    run.row("truth", "n2")[4:] = [6, 6]
    return {"half_used": 1}


def use_an_invented_answer(run):
    for row in run.rows:
        if row[1] == "n1":
            row[1] = "invented"
    return {"never_given": 1}


def use_an_answer_to_another_question(run):
    for asked in run.journal[:2]:
        asked["words"].remove("truth")
    return {"never_asked": 1}


def keep_a_banned_word(run):
    word = run.journal[2]["banned"][0]
    run.row(word, "n1")[4] = run.row(word, "n1")[5]
    return {"contradicted": 1}


def drop_an_allowed_word(run):
    run.row("truth", "n1")[4] = 0
    return {"contradicted": 1}


def keep_one_too_few(run):
    run.row("truth", "n1")[4] = 2
    return {"contradicted": 1}


def call_again_after_use(run):
    run.journal += [entry(200.0, "later", "k1", ["a"], []), entry(201.0, "last", "k1", ["a"], [])]
    return {"called_again": 2}


def write_nulls(run):
    row = run.row("truth")
    run.rows.append([*row[:2], None, *row[3:4], 0, 0])
    return {"malformed": 1}


def lose_the_nonce(run):
    run.row("truth")[1] = None
    return {"malformed": 1, "never_given": 1, "half_used": 1}


def damage_the_journal(run):
    run.journal.append('{"time": 12, "nonce')
    return {"malformed": 1}


def give_a_nonce_twice(run):
    run.journal.append(dict(run.journal[0], key="other"))
    return {"malformed": 1}


EACH_NAME = [
    give_two_requests_one_key,
    deliver_other_content,
    lose_an_occurrence,
    count_an_unknown_word,
    use_an_invented_answer,
]
"""Together they have each of :data:`FAULTS`. A verdict takes seconds: the first two have most."""
OTHERS = [
    lose_a_row,
    lose_everything,
    deliver_a_row_twice,
    count_in_two_windows,
    swap_the_loss_of_one_for_the_double_of_another,
    use_an_answer_to_another_question,
    keep_a_banned_word,
    drop_an_allowed_word,
    keep_one_too_few,
    call_again_after_use,
    write_nulls,
    lose_the_nonce,
    damage_the_journal,
    give_a_nonce_twice,
]


def printed(judgement):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(judgement.table())
    return console.export_text()


def test_a_faultless_run_passes(spark, tmp_path):
    judgement = Run().judged(spark, tmp_path / "journal")
    assert {name: getattr(judgement, name) for name in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert judgement.ok
    assert judgement.occurrences == 33
    assert judgement.delivered_rows == 18
    assert (judgement.calls, judgement.answers_used, judgement.answers_unused) == (4, 3, 1)
    assert "exactly once" in printed(judgement)
    assert spark.catalog.listTables() == []
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_the_first_ones_have_each_name():
    found = {name for spoil in EACH_NAME for name, count in spoil(Run()).items() if count}
    assert found == set(FAULTS)


@pytest.mark.parametrize(
    "spoil",
    EACH_NAME[:1]
    + [pytest.param(spoil, marks=pytest.mark.soak) for spoil in EACH_NAME[1:] + OTHERS],
    ids=lambda spoil: spoil.__name__,
)
def test_each_fault_is_found_under_its_name(spark, tmp_path, spoil):
    run = Run()
    expected = dict.fromkeys(FAULTS, 0) | spoil(run)
    judgement = run.judged(spark, tmp_path / "journal")
    assert {name: getattr(judgement, name) for name in FAULTS} == expected
    assert not judgement.ok
    for name, count in expected.items():
        assert bool(judgement.examples.get(name)) == bool(count)
    assert "FAULTS FOUND" in printed(judgement)


def test_every_line_with_a_word_is_read(spark, tmp_path):
    path = tmp_path / "input.txt"
    path.write_text("0\tIt is\n1\t\n2\ta truth\n3\t  \n4\tuniversally\n", "utf-8")
    rows = [row.value for row in dataframe(spark, path).collect()]
    assert rows == ["0\tIt is", "2\ta truth", "4\tuniversally"]


def test_nothing_to_judge_is_not_ok(spark, tmp_path):
    run = Run()
    run.rows, run.journal = [], []
    (tmp_path / "journal").write_text("")
    output = spark.createDataFrame([], OUTPUT_SCHEMA)
    assert not verdict(spark, output, [], 1, tmp_path / "journal").ok
