"""Bring the list of functions in docs/columns.md up to date."""

from pathlib import Path

from clonos.columns.listing import table

BEGIN, END = "<!-- functions -->\n", "<!-- end -->"

page = Path(__file__).parents[1] / "docs" / "columns.md"
before, begin, rest = page.read_text("utf-8").partition(BEGIN)
_, end, after = rest.partition(END)
assert begin and end, f"the marks of the list are missing in {page}"
page.write_text(f"{before}{BEGIN}{table()}\n{END}{after}", "utf-8")
