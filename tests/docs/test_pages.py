"""Code blocks for existing PySpark jobs, and for a job to submit, run as they stand on the page."""

from __future__ import annotations

import ast
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.docs.test_tutorial import BLOCK, DOCS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
]


@pytest.fixture
def url() -> Iterator[str]:
    """A service that judges texts."""

    class Judge(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"verdict": asked["text"].upper()}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def run(page: str, part: str, names: dict[str, Any], folder: Path) -> Any:
    """Run a page's only block with this part in it; what its last line gives."""
    (block,) = (found[2] for found in BLOCK.finditer((DOCS / page).read_text()) if part in found[2])
    block = block.replace("/data", str(folder))
    *lines, last = ast.parse(block).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(lines, []), page, "exec"), names)
    return eval(compile(ast.Expression(last.value), page, "eval"), names)


@pytest.mark.parametrize("page", ["causal.md", "../README.md"])
def test_a_udf_with_a_service(spark, url, tmp_path, page):
    pytest.importorskip("requests")
    texts = spark.createDataFrame([("a",), ("b",)], "text string")
    names = {"__name__": "__main__", "spark": spark, "URL": url, "df": texts}
    try:
        judged = run(page, "causal.start(", names, tmp_path)
        assert [tuple(row) for row in judged.collect()] == [("a", "A"), ("b", "B")]
    finally:
        names["log"].stop()


def test_a_job_to_submit(spark, tmp_path, monkeypatch):
    folders = [str(tmp_path / name) for name in ("checkpoint", "out", "journal")]
    monkeypatch.setattr(sys, "argv", ["job.py", *folders])
    run("deploy.md", "sys.argv", {"__name__": "__main__"}, tmp_path)
    assert pq.read_table(folders[1]).num_rows == 2
