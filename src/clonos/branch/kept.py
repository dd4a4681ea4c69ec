"""The original as files, so that changed code can run on it when the job's own code is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa

from clonos.branch.original import Asked, Original, Question, StepNote
from clonos.branch.rows import Rows
from clonos.columns.batches import from_bytes, to_bytes
from clonos.core.determinants import decode_record, encode_record
from clonos.core.messages import Kind
from clonos.errors import OperatorError
from clonos.replay.bundle import ORIGINAL, rows_path


def put(original: Original, folder: Path) -> None:
    """Write an original to a folder, which has the rows of sources already."""
    error = original.error
    asked = [
        [*one.question, one.task, one.position, one.came, one.rank, one.ok, one.answer]
        for one in original.asked
    ]
    about = {
        "order": original.order,
        "notes": {task: list(map(_packed, notes)) for task, notes in original.notes.items()},
        "asked": asked,
        "begins": original.begins,
        "ends": original.ends,
        "error": error and [error.what, error.where, error.remedy],
        "outputs": {
            sink: [made[:2] for made in outputs] for sink, outputs in original.outputs.items()
        },
    }
    (folder / ORIGINAL).write_bytes(msgpack.packb(about))
    for number, outputs in enumerate(original.outputs.values()):
        delivered = Rows(_outputs(folder, number))
        delivered.path.parent.mkdir(exist_ok=True)
        for _, _, batch in outputs:
            delivered.add(batch)
        delivered.close()


def get(folder: Path) -> Original:
    """Read an original from a folder."""
    about = msgpack.unpackb((folder / ORIGINAL).read_bytes(), strict_map_key=False)
    found = Original(begins=about["begins"], ends=about["ends"], order=about["order"])
    for task, notes in about["notes"].items():
        found.notes[task] = list(map(_note, notes))
        found.rows[task] = Rows(rows_path(folder, task))
    for *question, task, position, came, rank, ok, answer in about["asked"]:
        asked = Asked(Question(*question), task, position, came, rank, ok, answer)
        found.asked.append(asked)
    for number, (sink, made) in enumerate(about["outputs"].items()):
        batches = Rows(_outputs(folder, number)).read()
        found.outputs[sink] = list(_with(made, batches))
    if about["error"]:
        what, where, remedy = about["error"]
        found.error = OperatorError(what, where=where, remedy=remedy)
    return found


def _with(
    made: list[list[int]], batches: Iterator[pa.RecordBatch]
) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    for (task, step), batch in zip(made, batches, strict=True):
        yield task, step, batch


def _packed(note: StepNote) -> list[Any]:
    left_out = [to_bytes(batch) for batch in note.left_out]
    return [encode_record([note.cause]), note.kind, note.clock_ms, note.wake_ms, left_out]


def _note(packed: list[Any]) -> StepNote:
    record, kind, clock_ms, wake_ms, left_out = packed
    (cause,) = decode_record(record)
    kind = None if kind is None else Kind(kind)
    return StepNote(cause, kind, clock_ms, wake_ms, tuple(map(from_bytes, left_out)))


def _outputs(folder: Path, number: int) -> Path:
    return folder / "outputs" / f"{number}.arrow"
