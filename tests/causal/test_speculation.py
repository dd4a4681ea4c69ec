"""A speculative copy of a slow task, on a cluster of two hosts (two loopback addresses).

Spark starts no copy on the host that runs the first attempt, so ``local-cluster`` cannot show this.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark import TaskContext, cloudpickle

from clonos import causal
from clonos.spark.session import get_or_create
from tests.processes import free_port

from .conftest import model_service

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ROWS, PARTITIONS, PAUSE_S = 60, 2, 0.15


@contextlib.contextmanager
def started(folder: Path, host: str, *arguments: str):
    spark_home = Path(pyspark.__file__).parent
    command = [str(spark_home / "bin" / "spark-class"), *arguments, "--host", host]
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": host,
        "SPARK_WORKER_DIR": str(folder),
        "SPARK_HOME": str(spark_home),
    }
    with (folder / f"{host} {arguments[0]}").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


@pytest.fixture(scope="module")
def spark(new_jvm, tmp_path_factory):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors have no tests
    folder = tmp_path_factory.mktemp("cluster")
    port = str(free_port())
    deploy, url = "org.apache.spark.deploy", f"spark://127.0.0.1:{port}"
    worker = (f"{deploy}.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0", url)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.4",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.efficiency.enabled": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "5",
    }
    with contextlib.ExitStack() as cluster:
        cluster.enter_context(
            started(folder, "127.0.0.1", f"{deploy}.master.Master", "--port", port)
        )
        for host in ("127.0.0.1", "127.0.0.2"):
            cluster.enter_context(started(folder, host, *worker))
        session = get_or_create(url, "causal speculation", config=settings)
        give_up = time.monotonic() + 60
        while session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 3:
            assert time.monotonic() < give_up
            time.sleep(0.1)
        yield session
        session.stop()
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def score(url: str, text: str, pause_s: float) -> float:
    time.sleep(pause_s)
    body = json.dumps({"text": text}).encode()
    with urllib.request.urlopen(url + "/score", body, timeout=30) as response:
        answer: float = json.load(response)["score"]
        return answer


def run(spark, folder, url, ask, *, slow_copies):
    """Partition 1 is slow; its copies are, too, unless they only use answers again."""

    def enrich(batches):
        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        (folder / f"{partition}-{attempt}").touch()
        slow = partition == 1 and (attempt == 0 or slow_copies)
        for batch in batches:
            texts = batch.column("text").to_pylist()
            scores = [ask(url, text, PAUSE_S if slow else 0.0) for text in texts]
            yield batch.append_column("score", pa.array(scores, pa.float64()))

    texts = spark.range(ROWS, numPartitions=PARTITIONS).selectExpr("concat('text ', id) as text")
    rows = texts.mapInArrow(enrich, "text string, score double").collect()
    assert (folder / "1-1").exists()  # there was a copy
    assert len(rows) == ROWS


def test_without_causal_services_the_copy_asks_again(spark, tmp_path):
    with model_service() as model:
        run(spark, tmp_path, model.url, score, slow_copies=False)
        assert max(model.bill().values()) > 1


def test_with_them_it_follows_the_one_that_asks(spark, tmp_path):
    with model_service() as model, causal.start(spark, tmp_path / "log", run="copies"):
        run(spark, tmp_path, model.url, causal.service(score), slow_copies=True)
        assert Counter(model.bill().values()) == {1: ROWS}
