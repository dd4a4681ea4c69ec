"""What the documents point to exists: links, and files of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")
FILE = re.compile(r"`([\w./]+/[\w.]+\.(?:py|md|sh))`")
BASES = [ROOT, ROOT / "src" / "clonos", ROOT / "benchmarks" / "src" / "clonos_bench"]


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)
    spelled = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w -]", "", title).strip().replace(" ", "-") for title in spelled}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_files_exist(page):
    text = page.read_text()
    assert not [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    assert not [
        f"{link}#{anchor}"
        for link, anchor in ANCHOR.findall(text)
        if (target := page.parent / link if link else page).suffix == ".md"
        and anchor not in headings(target)
    ]
    named = set(FILE.findall(text))
    assert not [name for name in named if not any((base / name).exists() for base in BASES)]
