"""Checks whether sources still have the rows that they have given since a point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from clonos.core.determinants import Source, SourceCut, decode_record
from clonos.core.events import SourceRows
from clonos.core.messages import Run
from clonos.core.sealed import Layer
from clonos.errors import CannotRewind, ClonosError, NothingToReplay
from clonos.graph.code import TaskCode
from clonos.replay.past import readable
from clonos.sources.prefetch import PrefetchThread

_REMEDY: Final = (
    "choose a later point, or bring the rows back; with check_sources=False (--unchecked) the job "
    "goes back all the same, and its next start fails, or lacks these rows"
)


def reread(
    codes: Sequence[TaskCode], layers: Mapping[int, Layer], runs: Sequence[Run], spool_uri: str
) -> tuple[dict[str, int], dict[str, str]]:
    """Read all rows since a point again, and compare them with the log.

    Parameters
    ----------
    codes
        The tasks that go back.
    layers
        By task, its layer at the point.
    runs
        The log since then.

    Returns
    -------
    tuple
        By source: the number of rows that can be read again; and, for sources that cannot be read
        here, the reason.

    Raises
    ------
    CannotRewind
        Some rows are gone or have changed.
    """
    found: dict[str, int] = {}
    unknown: dict[str, str] = {}
    for code in codes:
        if code.source is None or layers[code.task.id].source_ended:
            continue
        records = [r for run in runs if run.task == code.task.id for r in run.records]
        causes = (decode_record(record)[0] for record in records)
        cuts = [cause for cause in causes if isinstance(cause, (Source, SourceCut))]
        try:
            here = readable(code, spool_uri)
        except NothingToReplay as error:
            unknown[code.source_name] = error.what
            continue
        rows = _read(here, layers[code.task.id], cuts)
        found[code.source_name] = found.get(code.source_name, 0) + rows
    return found, unknown


def _read(code: TaskCode, floor: Layer, cuts: Sequence[Source | SourceCut]) -> int:
    """The number of rows since the point; raises `CannotRewind` if some are missing."""
    assert code.source is not None
    rows = sum(cut.rows for cut in cuts)
    if not cuts:
        return 0
    if not code.source.replayable:
        raise CannotRewind(
            f"a {code.source.kind} source gives no row twice, and it has given {rows} since",
            where=code.task.name,
            remedy=_REMEDY,
        )
    reader = code.source.reader(code.task.index, code.parallelism)
    thread = PrefetchThread(reader, lambda: None, batch_rows_max=1, linger_s=0.0)
    try:
        thread.advance(floor.source_rows, floor.source_cut)
        thread.ask([(c.rows, c.cut if isinstance(c, SourceCut) else b"") for c in cuts])
        at = floor.source_rows
        for cut in cuts:
            again = thread.wait_for_taken()
            is_same = isinstance(again, SourceRows) and (again.batch.rows, again.batch.digest) == (
                cut.rows,
                cut.digest,
            )
            if not is_same:
                what = "other rows" if isinstance(again, SourceRows) else "no rows"
                raise CannotRewind(
                    f"the source gives {what} where it gave {cut.rows} behind row {at}",
                    where=code.task.name,
                    remedy=_REMEDY,
                )
            at += cut.rows
    except CannotRewind:
        raise
    except ClonosError as error:
        raise CannotRewind(
            f"the source cannot be read again from row {floor.source_rows} on: {error.what}",
            where=code.task.name,
            remedy=_REMEDY,
        ) from error
    finally:
        thread.close()
    return rows
