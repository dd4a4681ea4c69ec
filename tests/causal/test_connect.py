"""Spark Connect: the log is beside the client; what is missing is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import clonos
from clonos import causal


class _Client:
    host = "spark.example"


class _Session:
    __module__ = "pyspark.sql.connect.session"
    client = _Client()


def test_it_says_what_is_missing(tmp_path):
    with pytest.raises(causal.UnsupportedSession, match="missing for that: run and host"):
        causal.start(_Session(), tmp_path)
    with pytest.raises(causal.UnsupportedSession, match="missing for that: host"):
        causal.start(_Session(), tmp_path, run="nightly")
    with causal.start(_Session(), tmp_path, run="nightly", host="127.0.0.1") as log:
        with pytest.raises(causal.UnsupportedSession, match="run of its own"), log.batch("part"):
            pass
        with pytest.raises(causal.OutsideTask):
            causal.call(dict)


@pytest.mark.spark
@pytest.mark.soak
def test_functions_work(tmp_path):
    pytest.importorskip("grpc_status")
    script = Path(__file__).with_name("connect_client.py")
    source = str(Path(clonos.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "asked 10" in done.stdout
    assert done.stdout.count("said") == 4
    assert (
        done.stdout.count("has no driver in this process") == 2
    )  # jobs refuse, with or without it
