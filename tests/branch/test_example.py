"""The example: a prompt is changed in a branch, and the model's own journal is the bill."""

from __future__ import annotations

from pathlib import Path

import pytest

import clonos
from clonos.replay import NothingToReplay
from examples.branch import fraud

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.usefixtures("new_jvm")]


def contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_a_prompt_is_changed_in_a_branch(tmp_path):
    from clonos.spark.session import get_or_create

    checkpoint, journal = str(tmp_path / "checkpoint"), tmp_path / "bill"
    spark = get_or_create("local[3]")
    with fraud.serving(journal) as model:
        job = fraud.job(model, checkpoint)
        job.run(spark, timeout_s=300)
        assert fraud.billed(journal) == fraud.PAYMENTS
        before = contents(checkpoint)
        unchanged = job.branch(at="oldest", replace={})
        assert unchanged.compare("alerts").changes == 0
        assert unchanged.rows().num_rows > 0
        assert fraud.billed(journal) == fraud.PAYMENTS, "without a call"
        branch = fraud.what_if(model, checkpoint)
        large = [37 * n * n % 100_000 for n in range(fraud.PAYMENTS)]
        large = [cents for cents in large if cents >= fraud.LARGE]
        assert branch.calls == len(large) == fraud.billed(journal) - fraud.PAYMENTS
        assert branch.cost == pytest.approx(len(large) * fraud.CENTS_PER_CALL)
        (line,) = branch.bill.to_pylist()
        assert line["matched"] == fraud.PAYMENTS - len(large)
        found = branch.compare("alerts", keys=["id"])
        rows = found.table.to_pylist()
        assert all((row["cents_a"] or row["cents_b"]) >= fraud.LARGE for row in rows)
        assert contents(checkpoint) == before, "no trace"
        frame = found.dataframe(spark)
        assert frame.count() == found.changes
        with pytest.raises(NothingToReplay, match="no point at or before"):
            job.branch(at="1999-12-31", replace={})
        assert contents(checkpoint) == before
    assert f"{len(large)} calls made" in str(branch)
    assert isinstance(branch, clonos.Branch)
