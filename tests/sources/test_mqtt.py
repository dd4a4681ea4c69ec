"""MQTT as a source: acknowledged when durable, on a broker whose clients are killed."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import clonos
from clonos.errors import ClonosError, SourceError, WrongType
from clonos.sources import mqtt_inlet, outage
from clonos.sources.inlet_feed import InletFeed
from clonos.sources.mqtt_inlet import Session
from clonos.sources.offered import OFFERED
from clonos.sources.spool import Spool
from clonos.sources.spool_reader import SpoolReader
from tests.processes import free_port, kill, start

paho = pytest.importorskip("paho.mqtt.client")
_numbers = itertools.count()


class Bench:
    """A topic of a test, and a source that reads it."""

    def __init__(self, port: int, folder: Any) -> None:
        self.port, self.folder = port, folder
        self.topic = f"open/{os.getpid()}/{next(_numbers)}"
        self.client_id = self.topic.replace("/", "-")
        self.errors: list[ClonosError] = []
        self.said: list[str] = []
        self.publisher = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        self.publisher.connect("127.0.0.1", port)
        self.publisher.loop_start()

    def source(self, **options: Any) -> Any:
        given = {"client_id": self.client_id, "port": self.port, "value": "text", **options}
        return clonos.sources.mqtt("127.0.0.1", given.pop("topics", f"{self.topic}/+"), **given)

    def feed(self, spool: str = "spool", **options: Any) -> InletFeed:
        """One life of the driver's end."""
        at = Spool(f"{self.folder}/{spool}", 1)
        made = InletFeed(
            "sensors", self.source(**options).inlet, at, self.errors.append, self.said.append
        )
        made.start()
        return made

    def publish(self, *numbers: int) -> None:
        until_s = time.monotonic() + 60
        while not self.publisher.is_connected():  # it connects again if the broker was away
            assert time.monotonic() < until_s
            time.sleep(0.01)
        for n in numbers:
            self.publisher.publish(f"{self.topic}/{n % 3}", b"%d" % n, qos=1).wait_for_publish(60)

    def rows(self, count: int, spool: str = "spool") -> list[dict[str, Any]]:
        """What is spooled, once these are so many."""
        reader = SpoolReader(f"{self.folder}/{spool}", OFFERED, 0, 1)
        reader.open(0)
        found: list[dict[str, Any]] = []
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            batch = reader.read(1000, 0.1)
            found += [] if batch is None else batch.to_pylist()
            if len(found) >= count:
                return found
        raise AssertionError(f"{len(found)} of {count}")

    def close(self) -> None:
        self.publisher.disconnect()
        self.publisher.loop_stop()


@pytest.fixture
def bench(mqtt_port, tmp_path):
    made = Bench(mqtt_port, tmp_path)
    yield made
    made.close()


def test_messages_come_with_their_topic_also_those_of_when_nobody_listened(bench):
    first = bench.feed()
    bench.publish(0, 1, 2)
    bench.rows(3)
    first.close()
    bench.publish(3, 4)
    second = bench.feed()
    rows = bench.rows(5)
    while len({row["value"] for row in rows}) < 5:
        rows = bench.rows(len(rows) + 1)
    second.close()
    # One that was kept, but not acknowledged yet, comes again.
    assert {(row["value"], row["topic"]) for row in rows} == {
        (b"%d" % n, f"{bench.topic}/{n % 3}") for n in range(5)
    }
    assert not bench.errors


def test_what_is_not_durable_is_not_acknowledged_and_comes_again(bench, monkeypatch):
    reached, gate = threading.Event(), threading.Event()
    take = Spool.take

    def stuck(self: Spool, *what: Any) -> bool:
        reached.set()
        assert gate.wait(60)
        raise OSError("the disk is gone")

    monkeypatch.setattr(Spool, "take", stuck)
    first = bench.feed("lost")
    bench.publish(7)
    assert reached.wait(60)
    gate.set()
    first.close()
    monkeypatch.setattr(Spool, "take", take)
    second = bench.feed()
    assert [row["value"] for row in bench.rows(1)] == [b"7"]
    second.close()


def test_a_message_of_an_earlier_connection_is_not_acknowledged_by_its_number():
    session: Any = Session(
        clonos.sources.mqtt("h", "t", client_id="c", value="text").inlet,  # type: ignore[arg-type]
        lambda *_: True,
        print,
        print,
    )
    acknowledged: list[int] = []
    session._client = SimpleNamespace(ack=lambda mid, _: acknowledged.append(mid))
    session.thank(SimpleNamespace(mid=1, qos=1), 0, is_durable=True)
    session.thank(SimpleNamespace(mid=2, qos=1), 0, is_durable=False)
    session.thank(SimpleNamespace(mid=0, qos=0), 0, is_durable=True)
    session._on_disconnect()
    session.thank(SimpleNamespace(mid=3, qos=1), 0, is_durable=True)
    session.thank(SimpleNamespace(mid=4, qos=1), 1, is_durable=True)
    assert acknowledged == [1, 4]


def test_a_topic_that_is_no_text_does_not_end_the_reading():
    """Not all brokers check what is published."""
    taken: list[Any] = []

    def offer(value: bytes, key: str | None, topic: str | None, thank: Any) -> bool:
        taken.append((value, key, topic))
        return True

    inlet = clonos.sources.mqtt("h", "t", client_id="c", value="text").inlet
    session: Any = Session(inlet, offer, print, print)  # type: ignore[arg-type]
    for topic in (b"sensors/\xff/state", "größe".encode()):
        message = paho.MQTTMessage(1, topic)
        message.payload = b"7"
        session._on_message(None, None, message)
    assert taken == [(b"7", None, "sensors/\ufffd/state"), (b"7", None, "größe")]


DRIVER = """
import sys
import clonos
from clonos.sources.inlet_feed import InletFeed
from clonos.sources.spool import Spool
port, topic, client_id, uri = sys.argv[1:]
source = clonos.sources.mqtt(
    "127.0.0.1", topic + "/+", client_id=client_id, port=int(port), value="text"
)
feed = InletFeed("sensors", source.inlet, Spool(uri, 1), print, print)
feed.start()
print("listening", flush=True)
sys.stdin.read()
"""


def test_no_message_is_lost_though_the_process_is_killed(bench):
    driver = (DRIVER, bench.port, bench.topic, bench.client_id, bench.folder / "spool")
    process = start(*driver)
    published = 0
    for _ in range(3):
        bench.publish(*range(published, published + 150))
        published += 150
        kill(process)
        process = start(*driver)
    found: set[int] = set()
    count = 0
    while len(found) < published:
        rows = bench.rows(count + 1)
        count = len(rows)
        found = {int(row["value"]) for row in rows}
    assert found == set(range(published))
    process.communicate()


def test_what_is_said_of_brokers_that_are_away_or_refuse(bench):
    away = bench.source(port=1, username="me", password="secret").inlet
    with pytest.raises(SourceError, match="cannot be reached") as caught:
        away.open(lambda *_: True, print, print)
    assert "secret" not in str(caught.value) + repr(bench.source(password="secret"))


class Broker:
    """One of a test's own, which starts again with other rules."""

    def __init__(self, binary: str, folder: Any) -> None:
        self._binary, self._folder = binary, folder
        self.port = free_port()
        self._process: Any = None

    def start(self, rule: str) -> None:
        self.stop()
        config = self._folder / "conf"
        config.write_text(f"listener {self.port} 127.0.0.1\nlog_dest stderr\n{rule}\n")
        if os.geteuid() == 0:
            for path in (self._folder, config):
                shutil.chown(path, "mosquitto")
        command = [self._binary, "-c", str(config)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert any(line.rstrip().endswith(" running") for line in self._process.stderr)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)


@pytest.fixture
def broker(mqtt_port):
    binary = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
    assert binary is not None, f"and yet one listens at {mqtt_port}"
    with tempfile.TemporaryDirectory(prefix="broker-") as folder:  # pytest's is root's alone
        made = Broker(binary, Path(folder))
        yield made
        made.stop()


def test_a_broker_that_refuses_who_connects_again_ends_the_job(broker, tmp_path):
    broker.start("allow_anonymous true")
    bench = Bench(broker.port, tmp_path)
    feed = bench.feed()
    broker.start("allow_anonymous false")
    until = time.monotonic() + 60
    while not bench.errors:
        assert time.monotonic() < until, "it is refused for ever, and nobody hears of it"
        time.sleep(0.01)
    feed.close()
    (error,) = bench.errors
    assert isinstance(error, SourceError)
    assert "refuses the connection: Not authorized" in str(error)
    assert error.remedy
    assert any(said.startswith("sensors: MQTT at 127.0.0.1:") for said in bench.said)
    assert any("the connection has ended" in said for said in bench.said)
    bench.close()


def test_a_broker_that_has_lost_the_session_is_told_of(broker, tmp_path):
    broker.start("allow_anonymous true")
    bench = Bench(broker.port, tmp_path)
    feed = bench.feed()
    assert not bench.said
    broker.start("allow_anonymous true")  # it keeps nothing on a disk
    until = time.monotonic() + 60
    while not any("published meanwhile is lost" in said for said in bench.said):
        assert time.monotonic() < until, "messages are lost without a word"
        time.sleep(0.01)
    bench.publish(1)
    assert bench.rows(1)
    feed.close()
    assert not bench.errors
    bench.close()


def test_what_a_topic_retains_comes_once_though_each_connection_subscribes(bench, monkeypatch):
    thanked = threading.Semaphore(0)
    thank = Session.thank

    def thank_and_tell(self: Session, message: Any, connection: int, *, is_durable: bool) -> None:
        thank(self, message, connection, is_durable=is_durable)
        thanked.release()

    monkeypatch.setattr(Session, "thank", thank_and_tell)
    topic = f"{bench.topic}/0"
    bench.publisher.publish(topic, b"kept", qos=1, retain=True).wait_for_publish(60)
    for is_first in (True, False):
        feed = bench.feed()
        bench.publish(1)
        for _ in range(1 + is_first):
            assert thanked.acquire(timeout=60)
        feed.close()
    assert [row["value"] for row in bench.rows(3)] == [b"kept", b"1", b"1"]
    bench.publisher.publish(topic, b"", qos=1, retain=True).wait_for_publish(60)


def test_a_topic_that_is_refused_to_who_connects_again_ends_the_job_once(bench):
    feed = bench.feed()
    session: Any = feed._listener
    refused = SimpleNamespace(is_failure=True, value=0x87)
    for _ in range(2):  # Mosquitto refuses no topics
        session._on_subscribe(session._client, None, 1, [refused], None)
    feed.close()
    (error,) = bench.errors
    assert "refuses a topic" in str(error)


def test_a_broker_that_stays_away_is_mentioned_once_and_when_it_is_back(
    broker, tmp_path, monkeypatch
):
    monkeypatch.setattr(outage, "SILENT_S", 1.0)
    broker.start("allow_anonymous true")
    bench = Bench(broker.port, tmp_path)
    feed = bench.feed()
    broker.stop()
    until = time.monotonic() + 60
    while not any("it cannot be reached" in said for said in bench.said):
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(3)  # it goes on trying
    broker.start("allow_anonymous true")
    while not any(said.endswith("it works again") for said in bench.said):
        assert time.monotonic() < until
        time.sleep(0.01)
    feed.close()
    ended, away, *back = bench.said
    assert "the connection has ended" in ended
    assert "it cannot be reached. It is tried again until it works." in away
    assert len(back) == 2, "and it has lost the session"
    bench.close()


def test_a_frozen_broker_is_given_up_and_found_again(broker, tmp_path, monkeypatch):
    """Its kernel goes on, so the connection does not end by itself."""
    assert mqtt_inlet.SILENCE_S <= 30, "its users hear of it within a minute"
    monkeypatch.setattr(mqtt_inlet, "SILENCE_S", 1)
    broker.start("allow_anonymous true")
    bench = Bench(broker.port, tmp_path)
    feed = bench.feed()
    bench.publish(0, 1)
    bench.rows(2)
    broker.signal(signal.SIGSTOP)
    until = time.monotonic() + 60
    while not any("the connection has ended" in said for said in bench.said):
        assert time.monotonic() < until, "nobody hears of it"
        time.sleep(0.01)
    broker.signal(signal.SIGCONT)
    bench.publish(2, 3)
    rows = bench.rows(4)
    while len({row["value"] for row in rows}) < 4:  # what was not acknowledged comes again
        rows = bench.rows(len(rows) + 1)
    feed.close()
    assert not bench.errors
    bench.close()


def test_who_is_cut_off_again_and_again_says_so_once_a_minute(bench, caplog):
    feed = bench.feed()
    session: Any = feed._listener
    for _ in range(5):
        session._on_disconnect(None, None, None, "session taken over", None)
    feed.close()
    (said,) = bench.said
    assert "the connection has ended (session taken over)" in said
    assert len(caplog.messages) == 4, "the log has the others"


def test_a_broker_that_is_busy_is_asked_again(bench):
    feed = bench.feed()
    session: Any = feed._listener
    busy = SimpleNamespace(is_failure=True, value=0x89)
    session._on_connect(session._client, None, None, busy, None)
    bench.publish(1)
    assert bench.rows(1)
    feed.close()
    assert not bench.errors
    assert any("refuses the connection" in said for said in bench.said)


def test_a_message_that_is_too_long_ends_the_job_and_is_not_lost(bench):
    feed = bench.feed(message_bytes=3)
    for text in (b"abc", b"long", b"longer"):
        bench.publisher.publish(f"{bench.topic}/0", text, qos=1).wait_for_publish(60)
    assert [row["value"] for row in bench.rows(1)] == [b"abc"]
    until = time.monotonic() + 60
    while not bench.errors:
        assert time.monotonic() < until
        time.sleep(0.01)
    feed.close()
    (error,) = bench.errors
    assert isinstance(error, SourceError)
    assert f"a message of '{bench.topic}/0' has 4 bytes, more than the 3 that" in str(error)
    assert "message_bytes=" in error.remedy
    feed = bench.feed("other")
    rows = bench.rows(2, "other")
    while not {b"long", b"longer"} <= {row["value"] for row in rows}:  # "abc" may come again
        rows = bench.rows(len(rows) + 1, "other")
    feed.close()


def test_a_message_that_is_too_long_may_come_before_the_answer_to_the_subscription():
    """The broker knows the session, and sends what it has kept for it."""

    def come() -> None:
        message = paho.MQTTMessage(1, b"t")
        message.payload = b"long"
        session._on_message(None, None, message)
        session._on_subscribe(None, None, 1, [], None)

    errors: list[Exception] = []
    source: Any = clonos.sources.mqtt("h", "t", client_id="c", value="text", message_bytes=3)
    session: Any = Session(source.inlet, lambda *_: True, errors.append, print)
    session._client = SimpleNamespace(connect=lambda *_, **__: None, loop_start=come)
    with pytest.raises(SourceError, match="has 4 bytes") as caught:
        session.start()
    assert errors == [caught.value]
    assert "message_bytes=" in caught.value.remedy


def test_what_no_broker_takes_is_said_at_once(bench):
    source = bench.source(topics="a/#/b")
    with pytest.raises(SourceError, match=r"no broker takes these topics \(a/#/b\)"):
        Session(source.inlet, lambda *_: True, bench.errors.append, print).start()


@pytest.mark.parametrize(
    "options", [{"topics": []}, {"topics": [""]}, {"client_id": ""}, {"message_bytes": 0}]
)
def test_wrong_arguments(options):
    given = {"topics": "t", "client_id": "c", "value": "text", **options}
    with pytest.raises(WrongType) as caught:
        clonos.sources.mqtt("broker", **given)
    assert caught.value.remedy
