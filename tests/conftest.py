"""What holds for all tests: which Python Spark's workers use, and a JVM per module."""

import gc
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hypothesis
import pyspark
import pytest
from pyspark.sql import SparkSession

from clonos.spark.session import get_or_create
from clonos_bench.run import end_jvm
from tests.processes import free_port

ROOT = Path(__file__).parent.parent

# Processes that tests start, Spark's workers among them, import what the tests import.
SOURCES = [str(ROOT), str(ROOT / "src"), str(ROOT / "benchmarks" / "src")]
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*SOURCES, *filter(None, [os.environ.get("PYTHONPATH")])]
)

# A simulation makes many small objects and few cycles: they are looked for less often.
gc.set_threshold(50_000, 20, 20)

# How long an example takes says nothing on a busy machine.
hypothesis.settings.register_profile(
    "clonos", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("clonos")

# The first session's JVM serves all that follow, and reads these once.
os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


class Jvm:
    """The virtual machine of this process's Spark sessions; to start one takes seconds."""

    def __init__(self) -> None:
        self._of: str | None = None

    def need(self, of: str | None = None) -> None:
        """End the one that runs, unless it is that of the modules `of`, who leave nothing."""
        if of is None or of != self._of:
            end_jvm()
        self._of = of


@pytest.fixture(scope="session")
def jvm() -> Jvm:
    """Keeps it for modules that make the same session."""
    return Jvm()


@pytest.fixture(scope="module")
def new_jvm(jvm: Jvm) -> None:
    """A module that makes a session gets a JVM of its own: nothing is left of another's."""
    jvm.need()


_SHARED = {
    "spark.ui.enabled": "false",
    "spark.default.parallelism": "2",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1h",
}


@pytest.fixture(scope="module")
def shared_spark(jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Modules that need nothing special share a session: no job outlives its test, and what a
    module sets, or has as a view, goes with it. Whoever needs another one ends it."""
    jvm.need("all who share a session")
    tables = {"spark.sql.warehouse.dir": str(tmp_path_factory.getbasetemp() / "warehouse")}
    spark = get_or_create("local[18]", "tests", config={**_SHARED, **tables})
    before = dict(spark.conf.getAll)
    yield spark
    if spark is not SparkSession._instantiatedSession:
        return
    spark._jsparkSession.sessionState().catalog().clearTempTables()
    for key, value in spark.conf.getAll.items():
        if key not in before:
            spark.conf.unset(key)
        elif value != before[key]:
            spark.conf.set(key, before[key])


@pytest.fixture(scope="module")
def spark(shared_spark: SparkSession) -> SparkSession:
    """The same. A module that sets something has a fixture of this name that does."""
    return shared_spark


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that share a session come after the others: a process then starts it once."""
    sharing = {item.path for item in items if "shared_spark" in getattr(item, "fixturenames", ())}
    items.sort(key=lambda item: item.path in sharing)


# --- a PostgreSQL server of the tests' own -------------------------------------------------------


class PostgresServer:
    """A server in a folder of its own, which tests may stop and start."""

    def __init__(self, binaries: Path, folder: str) -> None:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        data = f"{folder}/data"
        self._data = Path(data)
        self._run([f"{binaries}/initdb", "-D", data, "-A", "trust", "-U", "postgres", "-N"])
        port = free_port()
        self._options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._options += " -c max_prepared_transactions=2"
        self._control = [f"{binaries}/pg_ctl", "-D", data, "-l", f"{folder}/log", "-w"]
        self.dsn = f"postgresql://postgres@127.0.0.1:{port}/postgres"

    def start(self) -> None:
        self._run([*self._control, "-o", self._options, "start"])

    def stop(self) -> None:
        self._run([*self._control, "-m", "immediate", "stop"])

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """It is away, and comes back."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All of its processes stand still, though their kernel goes on: nothing is answered."""
        main = int((self._data / "postmaster.pid").read_text().split()[0])
        stopped = [main]
        os.kill(main, signal.SIGSTOP)  # before its sessions are listed: it begins no more
        try:
            for child in Path(f"/proc/{main}/task/{main}/children").read_text().split():
                stopped.append(int(child))
                os.kill(int(child), signal.SIGSTOP)
            yield
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    @staticmethod
    def _run(command: list[str]) -> None:
        # PostgreSQL does not run as root.
        prefix = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        subprocess.run([*prefix, *command], check=True, capture_output=True, cwd="/")


def _postgres_binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if on_path:
        found.append(Path(on_path).resolve())
    return found[-1].parent if found else None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A server that is started for the tests."""
    binaries = _postgres_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed here (Debian's package: postgresql)")
    pytest.importorskip("psycopg")
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        server = PostgresServer(binaries, folder)
        server.start()
        yield server
        server.stop()


@pytest.fixture(scope="session")
def postgres(postgres_server: PostgresServer) -> str:
    """... and its DSN."""
    return postgres_server.dsn


# --- a Kafka cluster -----------------------------------------------------------------------------

_MOCK = """
import sys
from confluent_kafka import Producer
cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
(broker,) = cluster.list_topics(timeout=10).brokers.values()
print(f"{broker.host}:{broker.port}", flush=True)
sys.stdin.read()
"""
"""librdkafka's mock cluster, in a process of its own.

It neither fences producers nor hides what they have aborted, keeps no times, and has four
partitions to each topic."""

_topics = itertools.count()


class KafkaCluster:
    """The mock, or the real one that ``CLONOS_KAFKA=host:port`` names.

    Attributes
    ----------
    is_real
        Transactions and fences can be tried out, too.
    """

    def __init__(self, servers: str, *, is_real: bool) -> None:
        self.servers, self.is_real = servers, is_real

    def topic(self, partitions: int = 4) -> str:
        """Create a topic that nobody else has."""
        name = f"clonos-test-{os.getpid()}-{next(_topics)}"
        if self.is_real:
            from confluent_kafka.admin import AdminClient, NewTopic

            admin = AdminClient({"bootstrap.servers": self.servers})
            for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
                made.result(30)
        else:
            self.producer().list_topics(name, timeout=10)
        return name

    def producer(self, **options: object) -> Any:
        """A producer that sends at once."""
        from confluent_kafka import Producer

        return Producer({"bootstrap.servers": self.servers, "linger.ms": 0, **options})

    def produce(self, topic: str, *values: object, partition: int = 0) -> None:
        """Have these values (and keys, if pairs) in a partition, in this order."""
        producer = self.producer()
        for one in values:
            key, value = one if isinstance(one, tuple) else (None, one)
            producer.produce(topic, value, key, partition)
        assert producer.flush(30) == 0


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """A cluster for the tests."""
    pytest.importorskip("confluent_kafka")
    if servers := os.environ.get("CLONOS_KAFKA"):
        yield KafkaCluster(servers, is_real=True)
        return
    command = [sys.executable, "-c", _MOCK]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield KafkaCluster(process.stdout.readline().strip(), is_real=False)
        process.communicate()


# --- a Redis server of the tests' own ------------------------------------------------------------


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a server that is started for the tests."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("Redis is not installed here (Debian's package: redis-server)")
    redis = pytest.importorskip("redis")
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        port = free_port()
        command = [
            binary,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            folder,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert any("Ready to accept connections" in line for line in server.stdout)
            url = f"redis://127.0.0.1:{port}"
            yield url
            with redis.Redis.from_url(url) as client:
                client.shutdown(nosave=True)


# --- an MQTT broker of the tests' own ------------------------------------------------------------


@pytest.fixture(scope="session")
def mqtt_port() -> Iterator[int]:
    """The port of a broker that is started for the tests."""
    binary = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if binary is None:
        pytest.skip("Mosquitto is not installed here (Debian's package: mosquitto)")
    pytest.importorskip("paho.mqtt.client")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="mqtt-") as folder:
        config = Path(folder, "conf")
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nlog_dest stderr\n"
            "persistence false\nmax_queued_messages 0\nacl_file " + f"{folder}/acl\n"
        )
        Path(folder, "acl").write_text("topic readwrite open/#\n")
        if os.geteuid() == 0:  # it gives up root's rights
            for path in (Path(folder), *Path(folder).iterdir()):
                shutil.chown(path, "mosquitto")
        command = [binary, "-c", str(config)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as broker:
            assert broker.stderr is not None
            assert any(line.rstrip().endswith(" running") for line in broker.stderr)
            yield port
            broker.terminate()
            broker.stderr.read()
