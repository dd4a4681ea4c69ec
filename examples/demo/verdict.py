"""Was every word counted exactly once, with an answer the service gave, and called for once?

Computed with Spark SQL from three things that clonos does not write: the delivered rows, the input
text, and the journal of the service. Our own logs are not asked.

Rows of the demo's sink: ``word, nonce, window_start, window_end, kept, seen``. Each occurrence of a
word was counted once into `seen`, under the nonce of the answer that judged it, and into `kept`
unless that answer bans it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OUTPUT_SCHEMA: Final = (
    "word string, nonce string, window_start timestamp, window_end timestamp, kept long, seen long"
)
"""Columns of the demo's sink."""

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_JOURNAL_SCHEMA: Final = (
    "time double, nonce string, key string, words array<string>, banned array<string>, "
    "unreadable string"
)
FAULTS: Final = {
    "lost": "occurrences of a word that no delivered row counts",
    "twice": "occurrences counted too often, and rows delivered twice",
    "changed": "rows delivered again with other content",
    "never_given": "answers in the output that the service never gave",
    "never_asked": "(word, answer) in the output though the question did not contain the word",
    "contradicted": "(word, answer) whose count goes against what the answer says of the word",
    "half_used": "(word, answer) missing although other words of the same answer are delivered",
    "mistaken": "answers in the output that were those of another request with the same key",
    "called_again": "calls made again after their answer was used",
    "malformed": "rows that no such job writes: nulls, negative counts; unreadable journal lines",
}
"""What can be wrong, by the name of its count in :class:`Verdict`."""


@dataclass(frozen=True)
class Verdict:
    """How often each fault was found; all zero is what exactly-once means.

    Attributes
    ----------
    lost, twice, changed, never_given, never_asked, contradicted, half_used, mistaken, \
    called_again, malformed
        See :data:`FAULTS`.
    occurrences, delivered_rows
        How much was judged: words of the input, rows of the output.
    calls, answers_used, answers_unused
        From the service's journal. An unused answer is no fault: its caller died before it could
        write it down, so nothing depended on it.
    examples
        A few of each fault, by its name.
    """

    lost: int
    twice: int
    changed: int
    never_given: int
    never_asked: int
    contradicted: int
    half_used: int
    mistaken: int
    called_again: int
    malformed: int
    occurrences: int
    delivered_rows: int
    calls: int
    answers_used: int
    answers_unused: int
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Nothing is wrong, and there was something to judge."""
        return self.occurrences > 0 and not any(getattr(self, name) for name in FAULTS)

    def table(self) -> Table:
        """Return the verdict for a terminal."""
        title = "Verdict: every output exactly once" if self.ok else "Verdict: FAULTS FOUND"
        style = "bold green" if self.ok else "bold red"
        table = Table(title=title, title_style=style, title_justify="left")
        table.add_column("")
        table.add_column("count", justify="right")
        table.add_column("what it counts")
        for name, meaning in FAULTS.items():
            count = getattr(self, name)
            shown = "; ".join(self.examples.get(name, ()))
            row_style = "red" if count else "green"
            details = f"{meaning}, such as: {shown}" if shown else meaning
            table.add_row(name.replace("_", " "), f"{count:,}", details, style=row_style)
        table.add_section()
        table.add_row("occurrences", f"{self.occurrences:,}", "words of the input")
        table.add_row("delivered rows", f"{self.delivered_rows:,}", "rows of the output")
        table.add_row("calls", f"{self.calls:,}", "answers in the service's journal")
        table.add_row("answers used", f"{self.answers_used:,}", "their nonce is in the output")
        table.add_row("answers unused", f"{self.answers_unused:,}", "nothing depended on them")
        return table


def verdict(
    spark: SparkSession,
    output_df: DataFrame,
    lines: Sequence[str],
    repeats: int,
    journal_path: str | Path,
) -> Verdict:
    """Judge the delivered output of a finished run.

    Parameters
    ----------
    output_df
        With the columns of :data:`OUTPUT_SCHEMA`; all windows closed.
    lines, repeats
        The input: these lines, so many times.
    journal_path
        What the service wrote, on a filesystem that Spark reads.

    Examples
    --------
    >>> verdict(spark, output, load_text(), 3, "service.jsonl").ok  # doctest: +SKIP
    True
    """
    before = spark.conf.get(_PARTITIONS)
    # Spark's default of 200 partitions is for a cluster; here each costs more than its rows.
    spark.conf.set(_PARTITIONS, str(2 * spark.sparkContext.defaultParallelism))
    views = _Views(spark)
    try:
        views.create(output_df, lines, repeats, journal_path)
        return views.judge()
    finally:
        views.drop()
        spark.conf.set(_PARTITIONS, str(before))


class _Views:
    """The inputs as temporary views, and the queries over them."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._views: dict[str, DataFrame] = {}

    def create(
        self, output_df: DataFrame, lines: Sequence[str], repeats: int, journal_path: str | Path
    ) -> None:
        spark = self._spark
        journal = spark.read.schema(_JOURNAL_SCHEMA).json(
            str(journal_path), mode="PERMISSIVE", columnNameOfCorruptRecord="unreadable"
        )
        self._view("text", spark.createDataFrame([(line,) for line in lines], "line string"))
        self._view("output", output_df.select(*_columns(OUTPUT_SCHEMA)))
        self._view("journal", journal)
        self._view("expected", spark.sql(_EXPECTED_QUERY, {"repeats": repeats}))
        self._view("counted", spark.sql(_COUNTED_QUERY))
        self._view("rows", spark.sql(_ROWS_QUERY))
        self._view("words", spark.sql(_WORDS_QUERY))
        self._view("calls", spark.sql(_CALLS_QUERY))

    def _view(self, name: str, frame: DataFrame) -> None:
        self._views[name] = frame.cache()
        frame.createOrReplaceTempView(f"demo_{name}")

    def drop(self) -> None:
        for name, frame in self._views.items():
            frame.unpersist()
            self._spark.catalog.dropTempView(f"demo_{name}")

    def judge(self) -> Verdict:
        counts = dict.fromkeys(FAULTS, 0)
        examples: dict[str, list[str]] = {}
        for fault, query in _FINDINGS:
            (row,) = self._spark.sql(_SUMMED_QUERY.format(query=query)).collect()
            counts[fault] = row["total"]
            if row["examples"]:
                examples[fault] = row["examples"]
        (sizes,) = self._spark.sql(
            """select (select coalesce(sum(expected), 0) from demo_expected) as occurrences,
                      (select count(*) from demo_output) as delivered_rows,
                      count(*) as calls, count_if(used) as answers_used
               from demo_calls"""
        ).collect()
        return Verdict(
            **counts,
            **sizes.asDict(),
            answers_unused=sizes["calls"] - sizes["answers_used"],
            examples=examples,
        )


# What was delivered for a (word, answer), beside what the service's journal says of it.
_WORDS_QUERY: Final = """
    select o.word, o.nonce, o.seen, o.kept, j.nonce is not null as given,
           array_contains(j.words, o.word) as asked, array_contains(j.banned, o.word) as banned
    from (select word, nonce, sum(seen) as seen, sum(kept) as kept
          from demo_output group by word, nonce) o
    left join (select nonce, any_value(words) as words, any_value(banned) as banned
               from demo_journal group by nonce) j on o.nonce = j.nonce"""

# The calls of the service's journal, and whether the output depends on them.
_CALLS_QUERY: Final = """
    select j.*, w.nonce is not null as used
    from demo_journal j left join (select distinct nonce from demo_words) w on j.nonce = w.nonce
    where j.nonce is not null"""

# What was delivered for a word, beside how often the input has it.
_COUNTED_QUERY: Final = """
    select coalesce(e.word, o.word) as word, coalesce(expected, 0) as expected,
           coalesce(seen, 0) as seen
    from demo_expected e full join
         (select word, sum(seen) as seen from demo_output group by word) o on e.word = o.word"""

# The judge's own definition of a word: the job's code is not to be trusted here.
_EXPECTED_QUERY: Final = """
    select word, count(*) * :repeats as expected
    from (select explode(regexp_extract_all(lower(line), "([a-z']+)", 1)) as word from demo_text)
    group by word"""

_ROWS_QUERY: Final = """
    select word, nonce, window_start, window_end, count(*) as copies,
           count(distinct struct(kept, seen)) as contents
    from demo_output group by word, nonce, window_start, window_end"""

_FINDINGS: Final = (
    (
        "lost",
        """select expected - seen as n, concat(word, ' ', seen, ' of ', expected) as example
           from demo_counted""",
    ),
    (
        "twice",
        """select seen - expected, concat(word, ' ', seen, ' of ', expected) from demo_counted
           union all
           select copies - contents, concat(word, ' ', nonce, ' ', window_start) from demo_rows""",
    ),
    (
        "changed",
        "select contents - 1, concat(word, ' ', nonce, ' ', window_start) from demo_rows",
    ),
    (
        "never_given",
        "select 1, nonce from demo_words where not given group by nonce",
    ),
    (
        "never_asked",
        "select 1, concat(word, ' ', nonce) from demo_words where given and not asked",
    ),
    (
        "contradicted",
        """select 1, concat(word, ' ', nonce, ': kept ', kept, ' of ', seen,
                            if(banned, ' though banned', ' though allowed'))
           from demo_words where asked and kept != if(banned, 0, seen)""",
    ),
    (
        "half_used",
        """select size(array_distinct(words)) - delivered, concat('of answer ', c.nonce)
           from demo_calls c
           join (select nonce, count_if(asked) as delivered from demo_words group by nonce) d
           on c.nonce = d.nonce""",
    ),
    (
        # The service gives a known key the answer that it gave first.
        "mistaken",
        """select count_if(used and asked != first_asked), concat('key ', key)
           from (select key, used, asked, first_value(asked) over (partition by key order by time)
                        as first_asked
                 from (select key, used, time, array_sort(words) as asked from demo_calls))
           group by key""",
    ),
    (
        # An answer that came before the used one does no harm: nothing depended on it.
        "called_again",
        """select count_if(time > first_used), concat('key ', key)
           from (select key, time, min(if(used, time, null)) over (partition by key) as first_used
                 from demo_calls) group by key""",
    ),
    (
        "malformed",
        """select 1, concat('row ', to_json(struct(*))) from demo_output
           where word is null or nonce is null or window_start is null or window_end is null
                 or kept is null or seen is null or kept < 0 or seen < 1 or kept > seen
           union all
           select 1, concat('journal ', left(unreadable, 60)) from demo_journal
           where unreadable is not null
           union all
           select count(*) - 1, concat('nonce given twice: ', nonce) from demo_calls
           group by nonce""",
    ),
)
"""Per fault a query for rows (how many, example); one with n <= 0 is no finding."""

# Summed up one by one: as one union Spark takes several times as long.
_SUMMED_QUERY: Final = """
    select cast(coalesce(sum(n), 0) as bigint) as total,
           array_compact(array_distinct(array(min(example), max(example)))) as examples
    from (select n, coalesce(example, 'null') as example from ({query}) as t(n, example))
    where n > 0"""


def _columns(schema: str) -> list[str]:
    return [column.split()[0] for column in schema.split(", ")]
