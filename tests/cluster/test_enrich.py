"""The example: from Redis through a paid service into PostgreSQL, and a verdict that can say no."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from examples.enrich.verdict import judge
from examples.judging import Kill

ORDERS = {1: "a lamp", 2: "chair"}
FREE = 0.11
"""What they cost, in cents."""


@pytest.mark.spark
@pytest.mark.usefixtures("redis_url", "postgres")  # they skip it where there are no such servers
@pytest.mark.parametrize(
    ("orders", "kills"),
    [
        (80, ("worker", "driver")),
        pytest.param(120, ("worker", "executor", "driver"), marks=pytest.mark.soak),
    ],
)
def test_whatever_is_killed_each_order_is_there_once_and_paid_once(orders, kills):
    from examples.enrich.__main__ import Options, run

    folder = Path(tempfile.mkdtemp(prefix="clonos-enrich-"))
    folder.chmod(0o755)  # PostgreSQL may be another user
    try:
        lines = run(folder, Options(orders, 20.0, kills))
    finally:
        shutil.rmtree(folder)
    found = {line.what: line.found for line in lines}
    assert not [line for line in lines if not line.ok]
    assert found["kills"] == ", ".join(kills)
    assert found["asked again, open at a kill"] >= 1


class Journal:
    """Of a service, as its verdict reads it."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def ask(self, number: int, order: int, asker: int, end: str = "answered") -> Any:
        """A request at that second; the row that its answer makes."""
        cents = round(0.01 * len(ORDERS[order]), 4)
        receipt = f"r{number}"
        self.entries.append(
            {"kind": "asked", "number": number, "at": number, "id": order, "asker": asker}
        )
        said = {"receipt": receipt, "cents": cents} if end == "answered" else {}
        if end:
            self.entries.append({"kind": end, "number": number, "at": number + 0.5, **said})
        return order, ORDERS[order], receipt, cents

    def faults(self, tmp_path: Path, table: list[Any], bill: Any = None, *kills: Kill) -> set[str]:
        path = tmp_path / "journal"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries))
        said = bill or {"calls": 2, "cents": FREE}
        return {line.what for line in judge(path, kills, ORDERS, table, said) if not line.ok}


def test_the_verdict_is_content_with_what_may_be(tmp_path):
    journal = Journal()
    journal.ask(1, 1, asker=11, end="turned away")
    journal.ask(2, 1, asker=11)  # it was on its way when the process died
    journal.ask(3, 2, asker=11, end="")  # this one never had an answer
    rows = [journal.ask(4, 1, asker=12), journal.ask(5, 2, asker=12)]
    kill = Kill("worker", frozenset({11}), 2.6)
    assert journal.faults(tmp_path, rows, None, kill) == set()
    assert journal.faults(tmp_path, rows, {"calls": 2, "cents": 0.17}, kill) == {
        "cents on the job's bill"
    }
    assert journal.faults(tmp_path, rows, {"calls": 3, "cents": FREE}, kill) == {
        "calls on the job's bill"
    }


def test_the_verdict_sees_what_went_wrong(tmp_path):
    journal = Journal()
    one, two = journal.ask(1, 1, asker=11), journal.ask(2, 2, asker=11)
    assert journal.faults(tmp_path, [one, two]) == set()
    assert "rows in the table" in journal.faults(tmp_path, [one, two, two])
    assert "... each order once" in journal.faults(tmp_path, [one, one])
    assert "... each order once" in journal.faults(tmp_path, [one])
    assert "... each order once" in journal.faults(tmp_path, [one, (2, "a chair", *two[2:])])
    told = "... with what the service answered last"
    assert journal.faults(tmp_path, [one, (*two[:2], "r3", two[3])]) == {told}
    again = journal.ask(3, 2, asker=11)
    assert journal.faults(tmp_path, [one, again]) == {"asked again, though not killed"}
    kill = Kill("worker", frozenset({11}), 2.6)
    journal.entries[-2]["asker"] = 12
    assert journal.faults(tmp_path, [one, again], None, kill) == set()
    assert journal.faults(tmp_path, [one, two], None, kill) == {told}
