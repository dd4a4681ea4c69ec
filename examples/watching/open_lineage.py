"""A listener that tells OpenLineage what a job reads and writes, and a job to try it on.

    pip install openlineage-python
    python open_lineage.py FOLDER

The job reads ``FOLDER/orders.jsonl``, which it makes, and writes ``FOLDER/totals``; the events are
lines of ``FOLDER/lineage.jsonl``. With a ``HttpTransport`` instead of the file's they go to
Marquez, DataHub and others.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import error_message_run
from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics
from openlineage.client.facet_v2 import schema_dataset as columns
from openlineage.client.transport.file import FileConfig, FileTransport

import clonos
from clonos.spark.session import get_or_create

PRODUCER = "urn:clonos"


class OpenLineage(clonos.Listener):
    """Sends an event when the job begins, and one when it has ended, with the rows written."""

    def __init__(self, client: OpenLineageClient, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._started: Any = None
        self._progress: Any = None

    def on_started(self, started: Any) -> None:
        self._started = started
        self._emit(RunState.START)

    def on_progress(self, progress: Any) -> None:
        self._progress = progress

    def on_terminated(self, terminated: Any) -> None:
        if terminated.error is not None:
            told = error_message_run.ErrorMessageRunFacet(terminated.error, "Python")
            self._emit(RunState.FAIL, {"errorMessage": told})
        else:
            self._emit(RunState.COMPLETE if terminated.is_complete else RunState.ABORT)

    def _emit(self, state: RunState, facets: dict[str, Any] | None = None) -> None:
        started = self._started
        run_id = str(uuid5(NAMESPACE_URL, started.run_id))  # the same in both events
        self._client.emit(
            RunEvent(
                eventTime=datetime.now(timezone.utc).isoformat(),
                eventType=state,
                run=Run(run_id, facets),
                job=Job(self._namespace, started.name),
                inputs=[
                    InputDataset(self._namespace, _name(one), facets=_schema(one.columns))
                    for one in started.inputs
                ],
                outputs=[
                    OutputDataset(
                        self._namespace, _name(one), self._rows(one), facets=_schema(one.columns)
                    )
                    for one in started.outputs
                ],
                producer=PRODUCER,
            )
        )

    def _rows(self, output: Any) -> dict[str, Any]:
        """How many rows a sink has taken; a job that goes on counts from its first start."""
        found = self._progress.operators if self._progress is not None else ()
        rows = [operator.rows_in for operator in found if operator.name == output.operator]
        if not rows:
            return {}
        return {"outputStatistics": statistics.OutputStatisticsOutputDatasetFacet(rows[0])}


def _name(dataset: Any) -> str:
    """Where it is, or, of what has no place, what it is called in the job."""
    return str(dataset.place or f"{dataset.kind} {dataset.operator}")


def _schema(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    fields = [columns.SchemaDatasetFacetFields(name, text) for name, text in pairs]
    return {"schema": columns.SchemaDatasetFacet(fields)}


def main(folder: Path) -> None:
    """Run the job."""
    folder.mkdir(parents=True, exist_ok=True)
    orders = [{"customer": f"c{i % 3}", "cents": i} for i in range(100)]
    lines = "".join(json.dumps(order) + "\n" for order in orders)
    (folder / "orders.jsonl").write_text(lines)
    job = clonos.Job("totals", parallelism=1)
    source = clonos.sources.files(
        str(folder / "orders.jsonl"), "json", "customer string, cents long"
    )
    rows = job.source(source, name="orders")
    rows.key_by("customer").last(1_000, total=clonos.sum("cents")).sink(
        clonos.sinks.parquet(str(folder / "totals")), name="totals"
    )
    config = FileConfig(str(folder / "lineage.jsonl"), append=True)
    client = OpenLineageClient(transport=FileTransport(config))
    running = job.start(get_or_create("local[4]"), listeners=[OpenLineage(client, "examples")])
    print(running.wait())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
