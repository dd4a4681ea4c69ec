"""The demo's job: words, counted in windows, unless a service outside says they are banned.

The seed's example, written with the public API. Every answer of the service carries a nonce; the
nonce of the answer that judged a word stays with it into the output, so that the verdict can ask
the *service* whether that answer was ever given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import clonos
from examples.demo.client import check_words
from examples.demo.words import words_of


def split(row: Any) -> Iterator[tuple[int, str]]:
    """A numbered line into its words, each with a number that no other has."""
    number, _, line = row.value.partition("\t")
    for position, word in enumerate(words_of(line)):
        yield (int(number) << 32) + position, word


class AskService:
    """Judges the words of a batch by one call of the service: the causal call of the demo.

    The service deduplicates, so the call has a name: the numbers of the words that it is about.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, batch: pa.RecordBatch, ctx: clonos.Context) -> pa.RecordBatch:
        words = batch.column("word")
        asked = words.unique().to_pylist()
        key = ctx.idempotency_key(batch.column("id").to_pylist())
        answer = ctx.call(check_words, self._url, asked, key)
        banned = pc.is_in(words, value_set=pa.array(answer["banned"], pa.string()))
        count = len(words)
        return pa.RecordBatch.from_arrays(
            [
                words,
                pa.array([answer["nonce"]] * count),
                pc.if_else(banned, 0, 1).cast(pa.int64()),
                pa.array([1] * count, pa.int64()),
            ],
            names=["word", "nonce", "kept", "seen"],
        )


def build(
    source: Any,
    url: str,
    *,
    causal_log: bool = True,
    parallelism: int = 2,
    standbys: int = 1,
    sharing_depth: Any = 1,
    window: str = "5 seconds",
    rows_per_second: float | None = None,
    checkpoint_dir: str | None = None,
    sink: Any = None,
) -> clonos.Job:
    """Lines -> words -> banned? -> count per word and answer in windows -> sink."""
    job = clonos.Job(
        "wordcount",
        parallelism=parallelism,
        standbys=standbys,
        sharing_depth=sharing_depth,
        checkpoint_dir=checkpoint_dir,
        guarantee="exactly_once" if causal_log else "at_least_once",
        on_orphan="consistency" if causal_log else "availability",
    )
    lines = job.source(source, name="lines", rows_per_second=rows_per_second)
    words = lines.flat_map(split, schema="id long, word string")
    # Slots of their own for the tasks of each kind, so that they can be killed alone.
    judged = (
        words.slot_group("filter")
        .key_by("word")
        .map_batches(
            AskService(url),
            schema="word string, nonce string, kept long, seen long",
            name="filter",
        )
    )
    counts = (
        judged.slot_group("count")
        .key_by("word", "nonce")
        .window(clonos.tumbling(window))
        .agg(name="count", kept=clonos.sum("kept"), seen=clonos.sum("seen"))
    )
    counts.slot_group("sink").sink(sink or clonos.sinks.collect(), name="sink")
    return job
