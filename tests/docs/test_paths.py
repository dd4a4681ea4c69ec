"""What the documents point to exists: links, and files of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
FILE = re.compile(r"`([\w./]+/[\w.]+\.(?:py|md|sh))`")
BASES = [ROOT, ROOT / "src" / "clonos", ROOT / "benchmarks" / "src" / "clonos_bench"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_files_exist(page):
    text = page.read_text()
    assert not [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    named = set(FILE.findall(text))
    assert not [name for name in named if not any((base / name).exists() for base in BASES)]
