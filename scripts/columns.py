"""Bring the list of functions in docs/columns.md up to date."""

from pathlib import Path

from clonos.columns.listing import table

BEGIN, END = "<!-- functions -->\n", "\n<!-- end -->"

page = Path(__file__).parents[1] / "docs" / "columns.md"
before, _, rest = page.read_text("utf-8").partition(BEGIN)
page.write_text(before + BEGIN + table() + END + rest.partition(END)[2], "utf-8")
