"""A fraud job asks a paid model. What would another prompt have changed, and what would it cost?

    python -m examples.branch.fraud

runs the job once, with a model on loopback that never says the same twice. Then a branch of its
past asks the model with another prompt for large payments only. All other answers come from the
log. The difference and the bill are printed, beside the model's own journal.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import clonos

PAYMENTS: Final = 300
LARGE: Final = 90_000
CENTS_PER_CALL: Final = 0.2


class Model:
    """A client of the model, which is slow, not free, and never says the same twice."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, prompt: str) -> dict[str, Any]:
        """One call. Its address is no part of the question."""
        body = json.dumps({"text": prompt}).encode()
        with urllib.request.urlopen(self.url + "/score", body, timeout=10) as reply:  # noqa: S310 - ours
            answer: dict[str, Any] = json.load(reply)
            return answer


class Judge:
    """What the job does with a payment."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __call__(self, row: Any, ctx: clonos.Context) -> tuple[Any, ...]:
        answer = ctx.call(self.model.ask, self.prompt(row))
        return row.id, row.merchant, row.cents, answer["score"]

    def prompt(self, row: Any) -> str:
        """The question."""
        return f"Is this payment fraud? {row.merchant}, {row.cents} cents"


class Careful(Judge):
    """What it might do: large payments get another prompt."""

    def prompt(self, row: Any) -> str:
        if row.cents < LARGE:
            return super().prompt(row)
        return f"A large one, be careful! {row.merchant}, {row.cents} cents"


def job(model: Model, checkpoint: str) -> clonos.Job:
    """Payments whose score is high are alerts."""
    made = clonos.Job("fraud", checkpoint_dir=checkpoint, history="1 hour", standbys=0)
    rows = [(n, f"shop {n % 7}", 37 * n * n % 100_000) for n in range(PAYMENTS)]
    source = clonos.sources.from_batches([rows], schema="id long, merchant string, cents long")
    payments = made.source(source, name="payments")
    schema = "id long, merchant string, cents long, score double"
    judged = payments.map(Judge(model), schema, name="judge")
    alerts = judged.filter(lambda row: row.score > 0.8, name="high")
    alerts.sink(clonos.sinks.collect(), name="alerts")
    return made


@contextmanager
def serving(journal: Path) -> Iterator[Model]:
    """The model, for as long as it is needed."""
    folder = Path(__file__).resolve().parents[1]
    service = folder / "model_service" / "service.py"
    words = [sys.executable, str(service), "--journal", str(journal), "--latency-ms", "1"]
    journal.touch()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Model(process.stdout.readline().strip())
        finally:
            process.terminate()


def billed(journal: Path) -> int:
    """How many calls the model has put on its bill."""
    return journal.read_text().count("\n")


def what_if(model: Model, checkpoint: str, budget: int = 100) -> clonos.Branch:
    """The same payments with the other prompt. At most so many calls are made."""
    branch: clonos.Branch = job(model, checkpoint).branch(
        at="oldest",
        replace={"judge": Careful(model)},
        calls=clonos.Budget(calls=budget),
        ask=[model.ask],
        cost=lambda _: CENTS_PER_CALL,
    )
    return branch


def main() -> None:
    """Run the job, then ask what if."""
    from clonos.spark.session import get_or_create

    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder, "bill.jsonl")
        with serving(journal) as model:
            job(model, folder).run(get_or_create("local[3]"), timeout_s=300)
            before = billed(journal)
            print(f"the job has judged {PAYMENTS} payments; the model has billed {before} calls")
            branch = what_if(model, folder)
            difference = branch.compare("alerts", keys=["id"])
            print(difference)
            print(branch)
            print(
                f"This prompt changes {difference.changes} rows and costs {branch.cost:.2f} cents; "
                f"the model has billed {billed(journal) - before} more calls"
            )


if __name__ == "__main__":
    main()
