"""The code blocks of the tutorial and of pages that need no Spark run, in the page's order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "tutorial.md"
BLOCK = re.compile(r"^```python( spark)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def run_blocks(page: Path = PAGE, *, with_spark: bool) -> dict[str, Any]:
    """Run the blocks as one script; with or without those that are marked as Spark's."""
    text = page.read_text()
    names: dict[str, Any] = {"__name__": "__main__"}  # functions travel to slots by value
    try:
        for block in BLOCK.finditer(text):
            if with_spark or block[1] is None:
                # Blank lines before it: a traceback shows the line of the page.
                lines = "\n" * text[: block.start(2)].count("\n")
                exec(compile(lines + block[2], str(page), "exec"), names)
    finally:
        if "server" in names:
            names["server"].shutdown()
            names["server"].server_close()
    return names


def test_each_block_is_run():
    text = PAGE.read_text()
    assert len(BLOCK.findall(text)) == text.count("```python") > 8


def test_without_spark():
    names = run_blocks(with_spark=False)
    assert "spark" not in names


def test_the_page_about_testing(capsys):
    names = run_blocks(DOCS / "testing.md", with_spark=False)
    assert names["done"].deaths, "something has failed in it"
    assert "seeds=[0]" in capsys.readouterr().out


def test_the_page_about_deterministic_stretches(capsys):
    run_blocks(DOCS / "deterministic.md", with_spark=False)
    (task,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("map "))
    assert "none: it follows from the input" in task


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
def test_with_spark(new_jvm: None):
    names = run_blocks(with_spark=True)
    names["spark"].stop()
