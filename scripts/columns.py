"""Bring the list of functions in docs/columns.md up to date."""

from pathlib import Path

from clonos.columns.listing import table

BEGIN, END = "<!-- functions -->\n", "<!-- end -->"

page = Path(__file__).parents[1] / "docs" / "columns.md"
before, begin, rest = page.read_text("utf-8").partition(BEGIN)
_, end, after = rest.partition(END)
assert begin, f"{page} has no list"
assert end, f"the list in {page} has no end"
page.write_text(f"{before}{BEGIN}{table()}\n{END}{after}", "utf-8")
