"""The house's style, as far as a machine can check it: sizes, docstrings, and nothing private."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path for part in ("src", "benchmarks", "examples") for path in (ROOT / part).rglob("*.py")
)

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
"""Without the docstring: documentation may be as long as it needs to be."""

NOT_FOR_PRINT = {
    "a path of somebody's machine": re.compile(
        r"(?<![\w.:/-])/(?:home|Users|root|work|workspace|tmp|opt)/\w|\.\./shared"
    ),
    "a session or issue number": re.compile(
        r"\b(?:session|issue|ticket|pull request)s?\s+(?:#|no\.?\s*|number\s+)?\d|\bGH-\d|\w+#\d",
        re.IGNORECASE,
    ),
    "a registry's host": re.compile(
        r"\b(?:pypi|pythonhosted|npmjs|maven|debian|ubuntu)\.(?:org|com|net|io)\b|\bpypi/simple",
        re.IGNORECASE,
    ),
}
"""Things that mean nothing to a reader elsewhere."""


def function_length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        length -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return length


def style_faults(source: str) -> Iterator[str]:
    """What is wrong with the text of one module of the package."""
    lines = source.count("\n")
    if lines > FILE_LINES_MAX:
        yield f"1: {lines} lines; the limit is {FILE_LINES_MAX}"
    tree = ast.parse(source)
    if tree.body and not ast.get_docstring(tree):
        yield "1: no module docstring"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = function_length(node)
            if length > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {length} lines; limit {FUNCTION_LINES_MAX}"


def leaks(text: str) -> Iterator[str]:
    """What in `text` is nobody else's business."""
    for number, line in enumerate(text.splitlines(), 1):
        for what, pattern in NOT_FOR_PRINT.items():
            if match := pattern.search(line):
                yield f"{number}: {what}: {match.group()!r}"


def text_files(folder: Path = ROOT) -> Iterator[Path]:
    """All text files of the project, without what is made by tools."""
    for path in sorted(folder.iterdir()):
        if path.name in {Path(__file__).name, ".git"}:
            continue  # it has examples of what is forbidden; a worktree's .git is a file
        if path.is_dir():
            is_hidden = path.name.startswith(".") and path.name not in {".ci", ".github"}
            if not is_hidden and path.name not in {"__pycache__", "build", "dist", "out"}:
                yield from text_files(path)
        elif b"\0" not in path.read_bytes():  # text, as git decides it
            yield path


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sizes_and_docstrings(path):
    faults = list(style_faults(path.read_text("utf-8")))
    assert not faults, "\n".join(f"{path.relative_to(ROOT)}:{fault}" for fault in faults)


def test_nothing_private_is_mentioned():
    found = [
        f"{path.relative_to(ROOT)}:{leak}"
        for path in text_files()
        for leak in leaks(path.read_text("utf-8", errors="replace"))
    ]
    assert not found, "\n".join(found)


def test_the_files_looked_at_are_the_project():
    names = {str(path.relative_to(ROOT)) for path in text_files()}
    assert {"README.md", "pyproject.toml", "src/clonos/errors/base.py", ".ci/run"} <= names


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("x = 1\n", "no module docstring"),
        ('"""M."""\n' + "x = 1\n" * 600, "601 lines"),
        ('"""M."""\ndef f():\n' + "    x = 1\n" * 70, "f has 71 lines"),
        ('"""M."""\nclass C:\n  async def f():\n' + "    x = 1\n" * 70, "f has 71 lines"),
    ],
)
def test_bad_style_is_found(source, complaint):
    (found,) = style_faults(source)
    assert complaint in found


def test_a_docstring_does_not_make_a_function_long():
    docstring = '    """' + "word\n" * 100 + '    """\n'
    source = '"""M."""\ndef f():\n' + docstring + "    x = 1\n" * 69
    assert list(style_faults(source)) == []


@pytest.mark.parametrize(
    "text",
    [
        'open("/home/someone/data")',
        "see /tmp/x.log",
        "as found in session 12",
        "fixes issue #7",
        "owner/project#7",
        "https://" + "pypi" + ".org/simple/x",  # in pieces: this file is checked, too
        "cp ../" + "shared/design.md .",
    ],
)
def test_a_leak_is_found(text):
    assert list(leaks(text))


@pytest.mark.parametrize(
    "text",
    ["a session window of 3 s", "docs/work/plan.md", "SPARK-12345", "colour #123456", "issue it"],
)
def test_ordinary_text_is_no_leak(text):
    assert list(leaks(text)) == []
