"""The house-keeper's process: what it acknowledged is there, whatever dies."""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clonos.causal import errors
from clonos.causal.holder import ServedHolder
from clonos.causal.messages import AnswerKey
from clonos.causal.server import LogServer
from clonos.errors import JournalBroken, JournalInUse, PlaintextRefused, TlsUnavailable
from clonos.errors.causal import Fenced, LogBroken, LogFull, LogUnreachable, UnsupportedQuery
from clonos.transport.certificates import Authority
from clonos.transport.secret import JobSecret

KEY = AnswerKey("query", 0, "f", 3)


@pytest.fixture
def holder_of():
    """Makes holders, and closes them in the end."""
    made = []

    def make(server, job=None, secret=None, address=None, **options):
        to = address or server.address, job or server.job, secret or server.secret
        made.append(ServedHolder(*to, **options))
        return made[-1]

    yield make
    for holder in made:
        holder.close()


def test_what_is_acknowledged_is_there_again(tmp_path, holder_of):
    with LogServer(tmp_path) as server:
        holder = holder_of(server)
        holder.open(KEY, "1", "e")
        for number in range(10):
            holder.append(KEY, "e", str(number).encode())
    with LogServer(tmp_path) as server:
        holder = holder_of(server)
        assert holder.open(KEY, "2", "e").length == 10
        assert holder.read(KEY, 7).chunks == (b"7", b"8", b"9")


_CRASHING = """
import os, sys, threading
from clonos.causal.holder import ServedHolder
from clonos.causal.messages import AnswerKey
from clonos.causal.server import LogServer
server = LogServer(sys.argv[1])
def append(partition):
    holder = ServedHolder(server.address, server.job, server.secret)
    key = AnswerKey("query", 0, "f", partition)
    holder.open(key, "1", "e")
    number = 0
    while True:
        holder.append(key, "e", b"%d" % number * 50)
        os.write(1, b"%d %d\\n" % (partition, number))
        number += 1
for partition in range(4):
    threading.Thread(target=append, args=(partition,), daemon=True).start()
threading.Event().wait()
"""


def test_a_killed_house_keeper_loses_nothing_acknowledged(tmp_path, holder_of):
    directory, acknowledged = tmp_path / "log", tmp_path / "acknowledged"
    source = str(Path(errors.__file__).parents[2])
    with acknowledged.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", _CRASHING, str(directory)],
            stdout=out,
            env={**os.environ, "PYTHONPATH": source},
        )
        give_up = time.monotonic() + 60
        while acknowledged.stat().st_size < 2_000 and time.monotonic() < give_up:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with next(directory.glob("*.journal")).open("ab") as journal:
        journal.write(b"\xc1JRN half a frame")  # what a crash of the machine may leave, too
    lines = [line.split() for line in acknowledged.read_text().splitlines()]
    assert len(lines) > 100
    with LogServer(directory) as server:
        holder = holder_of(server)
        for partition in range(4):
            where = AnswerKey("query", 0, "f", partition)
            holder.open(where, "2", "e")
            kept = holder.read(where, 0).chunks
            mine = [int(number) for p, number in lines if int(p) == partition]
            assert len(kept) >= len(mine)
            assert all(chunk == b"%d" % i * 50 for i, chunk in enumerate(kept))


def test_a_follower_sees_what_the_owner_appends_and_inherits_it(server, holder_of):
    owner, follower = holder_of(server), holder_of(server)
    assert owner.open(KEY, "1", "e").owner
    assert not follower.open(KEY, "2", "e").owner
    later = threading.Timer(0.1, owner.append, (KEY, "e", b"news"))
    later.start()
    assert follower.read(KEY, 0, wait_s=5.0).chunks == (b"news",)
    later.join()
    threading.Timer(0.1, owner.close).start()  # as if the process had died
    assert follower.read(KEY, 1, wait_s=5.0).is_free
    assert follower.open(KEY, "2", "e").owner


def test_a_silent_owner_is_taken_for_dead(server, monkeypatch, holder_of):
    monkeypatch.setattr("clonos.causal.node.SILENT_S", 0.2)
    owner, other = holder_of(server), holder_of(server)
    owner.open(KEY, "1", "e")
    assert not other.open(KEY, "2", "e").owner
    time.sleep(0.3)
    assert other.read(KEY, 0, wait_s=5.0).is_free
    assert other.open(KEY, "2", "e").owner
    with pytest.raises(Fenced):
        owner.append(KEY, "e", b"late")


def test_a_stranger_gets_nothing(server, holder_of):
    stranger = holder_of(server, secret=JobSecret(secrets.token_bytes(32)))
    with pytest.raises(LogUnreachable, match="secret"):
        stranger.open(KEY, "1", "e")
    other_job = holder_of(server, job="another")
    with pytest.raises(LogUnreachable):
        other_job.open(KEY, "1", "e")


def test_a_log_that_is_gone_is_unreachable_within_the_time(server, holder_of):
    holder = holder_of(server)
    holder.open(KEY, "1", "e")
    server.close()
    began = time.monotonic()
    with pytest.raises(LogUnreachable, match="does not answer"):
        holder.append(KEY, "e", b"answer")
    assert time.monotonic() - began < 10


def test_no_reply_is_waited_for_forever(server, holder_of):
    holder = holder_of(server, reply_s=0.2)
    holder.open(KEY, "1", "e")
    with pytest.raises(LogUnreachable, match="no reply within"):
        holder_of(server, reply_s=0.2).read(KEY, 0, wait_s=2.0)


def test_the_budget_is_a_typed_error(tmp_path, holder_of):
    with LogServer(tmp_path, bytes_max=1000) as server:
        holder = holder_of(server)
        holder.open(KEY, "1", "e")
        holder.append(KEY, "e", bytes(500))
        with pytest.raises(LogFull, match="bytes_max"):
            holder.append(KEY, "e", bytes(500))
        holder.forget("query")
        holder.open(KEY, "1", "e")
        holder.append(KEY, "e", bytes(500))


def test_a_full_disk_is_a_typed_error_and_no_end(server, monkeypatch, holder_of):
    holder = holder_of(server)
    holder.open(KEY, "1", "e")

    def refuse():
        raise JournalBroken("no space left on device")

    monkeypatch.setattr(server._journal, "commit", refuse)
    monkeypatch.setattr(server._journal, "rotate", lambda _: refuse())
    for _ in range(2):
        with pytest.raises(LogBroken, match="no space left"):
            holder.append(KEY, "e", b"answer")
    monkeypatch.undo()
    holder.append(KEY, "e", b"and there is room again")
    assert holder.read(KEY, 0).chunks[-1] == b"and there is room again"


def test_the_file_does_not_grow_without_end(tmp_path, monkeypatch, holder_of):
    monkeypatch.setattr("clonos.causal.node.ROTATE_BYTES", 10_000)
    with LogServer(tmp_path, durability="process") as server:
        holder = holder_of(server)
        for batch in range(60):
            where = KEY._replace(batch=batch)
            holder.open(where, "1", "e")
            holder.append(where, "e", bytes([batch]) * 1000)
        assert server.journal_bytes < 20_000
    with LogServer(tmp_path) as server:
        holder = holder_of(server)
        holder.open(KEY._replace(batch=59), "2", "e")
        assert holder.read(KEY._replace(batch=59), 0).chunks == (bytes([59]) * 1000,)


def test_one_driver_per_directory(server, tmp_path):
    with pytest.raises(JournalInUse):
        LogServer(tmp_path / "log")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example"])
def test_the_log_listens_at_one_address(tmp_path, host):
    with pytest.raises(PlaintextRefused):
        LogServer(tmp_path, host)


def test_a_log_may_be_refused_before_it_is_opened(tmp_path, holder_of):
    judged = []

    def judge(scope, batch):
        judged.append((scope, batch))
        if scope == "hasty":
            raise UnsupportedQuery("it does not wait", remedy="let it")

    with LogServer(tmp_path, judge=judge) as server:
        holder = holder_of(server)
        holder.open(KEY, "1", "e")
        with pytest.raises(UnsupportedQuery, match=r"does not wait.*let it"):
            holder.open(AnswerKey("hasty", 4, "f", 0), "1", "e")
        holder.append(KEY, "e", b"x")
    assert judged == [("query", 0), ("hasty", 4)]


def test_answers_do_not_leave_the_machine_unencrypted(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(TlsUnavailable, match="tls=False"):
        LogServer(tmp_path, "10.1.2.3")


def test_an_encrypted_log(tmp_path, holder_of):
    with LogServer(tmp_path, tls=True) as server:
        assert server.address.startswith("tls://driver@127.0.0.1:")
        holder = holder_of(server, identity=server.identity)
        holder.open(KEY, "1", "e")
        holder.append(KEY, "e", b"answer")
        assert holder.read(KEY, 0).chunks == (b"answer",)
        for identity in (Authority("other").issue("task"), None):
            with pytest.raises(LogUnreachable):
                holder_of(server, identity=identity, reply_s=5.0).open(KEY, "1", "e")
        address = server.address.replace("tls://driver@", "tcp://")
        plain = holder_of(server, address=address, reply_s=5.0)
        with pytest.raises(LogUnreachable):
            plain.open(KEY, "1", "e")
        holder.append(KEY, "e", b"another")  # and it goes on
