"""The journal: whatever happens to the tail, what was committed comes back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clonos.errors import JournalBroken, JournalInUse, ProtocolError, UnreadableJournal
from clonos.storage import journal as journal_module
from clonos.storage.files import LocalFiles
from clonos.storage.journal import Journal, JournalReader

groups = st.lists(st.lists(st.binary(max_size=60), min_size=1, max_size=4), max_size=5)


def segment_of(directory: Path) -> Path:
    (path,) = directory.glob("*.journal")
    return path


def contents(directory: Path) -> list[bytes]:
    with Journal(directory) as journal:
        return list(journal.replay())


def written(directory: Path, committed: list[list[bytes]]) -> None:
    """By a process that was killed: nothing vouches for the last group."""
    journal = Journal(directory, "process")
    for group in committed:
        journal.append(group)
        journal.commit()
    journal._release()


@pytest.mark.parametrize("durability", ["fsync", "process"])
def test_committed_records_come_back_in_order(tmp_path, durability):
    with Journal(tmp_path, durability) as journal:
        journal.append([b"a", b""])
        journal.append([b"b" * 100_000])
        journal.commit()
        journal.commit()  # nothing to do
        assert journal.next_seq == 3
        assert list(journal.replay()) == [b"a", b"", b"b" * 100_000]
        journal.append([b"c"])
        journal.commit()
        journal.append([b"lost"])
        assert journal.nbytes == segment_of(tmp_path).stat().st_size
    with Journal(tmp_path, durability) as journal:
        assert journal.next_seq == 4
        journal.append([b"d"])
        journal.commit()
        assert list(journal.replay()) == [b"a", b"", b"b" * 100_000, b"c", b"d"]


@settings(max_examples=150)
@given(committed=groups, torn=st.lists(st.binary(max_size=60), min_size=1), data=st.data())
def test_a_damaged_tail_is_cut_and_nothing_committed_is(committed, torn, data):
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        written(directory, committed)
        path = segment_of(directory)
        safe = path.stat().st_size
        written(directory, [torn])  # its commit "never returned"
        content = bytearray(path.read_bytes())
        how = data.draw(st.sampled_from(["truncate", "flip", "zeros", "garbage"]))
        at = data.draw(st.integers(safe, len(content) - 1))
        if how == "truncate":
            del content[at:]
        elif how == "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "zeros":
            content[at:] = bytes(len(content) - at)
        else:
            content[at:] = data.draw(st.binary(max_size=80))
        path.write_bytes(content)
        expected = [record for group in committed for record in group]
        survivors = contents(directory)
        assert survivors in (expected, expected + torn)
        # ... and the journal goes on from there.
        written(directory, [[b"next"]])
        assert contents(directory) == [*survivors, b"next"]


@settings(max_examples=100)
@given(committed=groups.filter(len), data=st.data())
def test_damage_before_a_good_frame_is_an_error_with_file_and_offset(committed, data):
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        written(directory, committed[:-1])
        path = segment_of(directory)
        before = path.stat().st_size
        written(directory, committed[-1:])
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, before - 1))
        content[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        with pytest.raises(UnreadableJournal, match="at byte") as caught:
            Journal(directory)
        assert caught.value.where == str(path)
        assert caught.value.remedy


@given(content=st.binary(max_size=200))
def test_garbage_raises_the_typed_error_only(content):
    with tempfile.TemporaryDirectory() as name:
        Path(name, "000000000001.journal").write_bytes(content)
        with pytest.raises(UnreadableJournal):
            Journal(name)


def test_a_torn_group_that_contains_a_frame_is_still_cut(tmp_path):
    other, here = tmp_path / "other", tmp_path / "here"
    written(other, [[b"x"], [b"y"]])
    written(here, [[b"a"]])
    written(here, [[segment_of(other).read_bytes(), b"z" * 10]])
    path = segment_of(here)
    os.truncate(path, path.stat().st_size - 1)
    assert contents(here) == [b"a"]


def test_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "_VERSION", 99)
    written(tmp_path, [[b"a"]])
    monkeypatch.undo()
    with pytest.raises(UnreadableJournal, match="version 99"):
        Journal(tmp_path)


def test_rotation_replaces_everything_before_it(tmp_path):
    with Journal(tmp_path) as journal:
        journal.append([b"a", b"b"])
        journal.commit()
        journal.append([b"covered by the head"])
        journal.rotate([b"head 1", b"head 2"])
        first = segment_of(tmp_path)
        assert list(journal.replay()) == [b"head 1", b"head 2"]
        journal.append([b"c"])
        journal.commit()
    assert contents(tmp_path) == [b"head 1", b"head 2", b"c"]
    with Journal(tmp_path) as journal:
        assert journal.next_seq == 5
        journal.rotate([])
        assert list(journal.replay()) == []
    assert segment_of(tmp_path) > first


def test_a_crash_around_the_rename_leaves_one_whole_journal(tmp_path):
    written(tmp_path, [[b"old"]])
    old = segment_of(tmp_path)
    kept = old.read_bytes()
    (tmp_path / "000000000002.journal.00ff.tmp").write_bytes(b"half a head")
    assert contents(tmp_path) == [b"old"]
    with Journal(tmp_path) as journal:
        journal.rotate([b"new"])
    old.write_bytes(kept)  # the crash came before the deletion
    assert contents(tmp_path) == [b"new"]
    (only,) = tmp_path.glob("*.*")
    assert only.name > old.name


def test_a_damaged_head_is_an_error_even_at_the_end(tmp_path):
    with Journal(tmp_path) as journal:
        journal.rotate([b"head"])
    path = segment_of(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(UnreadableJournal, match="head"):
        Journal(tmp_path)


def test_one_writer_only(tmp_path):
    with Journal(tmp_path):
        mine = rf"this process runs the job already \(process {os.getpid()} .*call stop\(\)"
        with pytest.raises(JournalInUse, match=mine):
            Journal(tmp_path)
        code = f"from clonos.storage.journal import Journal; Journal({str(tmp_path)!r})"
        other = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert "JournalInUse" in other.stderr
        assert f"another driver has it open (process {os.getpid()} on" in other.stderr
    Journal(tmp_path).close()


def test_killed_writer_frees_the_lock_and_keeps_what_it_committed(tmp_path):
    code = (
        "import os, signal; from clonos.storage.journal import Journal\n"
        f"journal = Journal({str(tmp_path)!r}, 'process')\n"
        "journal.append([b'kept']); journal.commit(); journal.append([b'not'])\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert contents(tmp_path) == [b"kept"]


@pytest.mark.parametrize("ends", ["closes it", "is killed"])
def test_a_forked_child_does_not_keep_the_lock(tmp_path, ends):
    """Python makes the processes of a pool by fork, and they may live longer than the driver."""
    code = (
        "import os, signal; from clonos.storage.journal import Journal\n"
        f"journal = Journal({str(tmp_path)!r}, 'process')\n"
        "journal.append([b'kept']); journal.commit()\n"
        "runs, says = os.pipe(); child = os.fork()\n"
        "if not child: os.write(says, b'.'); signal.pause()\n"
        "os.read(runs, 1)\n"
        f"if {ends == 'closes it'}: journal.close()\n"
        "print(child, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        child = int(driver.stdout.readline())
        try:
            driver.wait()
            assert contents(tmp_path) == [b"kept"]
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_give_up_the_lock(tmp_path):
    with Journal(tmp_path) as journal:
        child = os.fork()
        if not child:
            journal._release()
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(JournalInUse):
            Journal(tmp_path)


def test_only_its_user_can_read_it(tmp_path):
    """Whatever is usual for files: it has rows, and answers of services."""
    before = os.umask(0)
    try:
        with Journal(tmp_path) as journal:
            journal.append([b"secret"])
            journal.commit()
            assert segment_of(tmp_path).stat().st_mode & 0o077 == 0
            journal.rotate([b"secret"])
    finally:
        os.umask(before)
    assert not [path for path in tmp_path.iterdir() if path.stat().st_mode & 0o077]


def test_after_a_failed_write_only_a_rotation_helps(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.append([b"kept"])
    journal.commit()

    def refuse(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", refuse)
    journal.append([b"unknown"])
    with pytest.raises(JournalBroken, match="Input/output"):
        journal.commit()
    monkeypatch.undo()
    assert journal.is_broken
    for use in (journal.commit, lambda: journal.append([b"x"]), journal.vouch):
        with pytest.raises(JournalBroken):
            use()
    journal.rotate([b"head"])
    journal.append([b"next"])
    journal.commit()
    journal.close()
    assert contents(tmp_path) == [b"head", b"next"]


def test_a_rotation_that_failed_is_tried_again(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.append([b"kept"])
    journal.commit()

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LocalFiles, "sync", refuse)
    for _ in range(3):
        with pytest.raises(JournalBroken, match="No space"):
            journal.rotate([b"head"])
        with pytest.raises(JournalBroken):
            journal.commit()
    monkeypatch.undo()
    journal.close()
    assert contents(tmp_path) == [b"kept"]
    with Journal(tmp_path) as again:
        again.rotate([b"head"])
    assert contents(tmp_path) == [b"head"]


def test_a_closed_journal_says_so(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    monkeypatch.setattr(journal_module, "RECORD_BYTES_MAX", 3)
    with pytest.raises(ProtocolError, match="4 bytes"):
        journal.append([b"1234"])
    journal.close()
    journal.close()
    with pytest.raises(ProtocolError, match="closed"):
        journal.append([b"a"])


looks = st.lists(st.sampled_from(["look", "commit", "rotate", "tear", "vouch"]), max_size=30)


@settings(max_examples=50)
@given(looks)
def test_a_reader_has_at_each_look_what_is_committed_and_reads_nothing_twice(events):
    with tempfile.TemporaryDirectory() as folder, Journal(folder, "process") as journal:
        reader, known = JournalReader(), list[bytes]()
        for n, event in enumerate([*events, "look"]):
            if event == "commit":
                journal.append([b"%d" % n] * (n % 3 + 1))
                journal.commit()
            elif event == "rotate":
                journal.rotate([*journal.replay()][-2:])
            elif event == "vouch":
                journal.vouch()
            elif event == "look":
                begins, more = reader.more(LocalFiles(), folder)
                known = more if begins else known + more
                assert known == list(journal.replay())
                before = reader.read_bytes
                assert reader.more(LocalFiles(), folder) == (False, [])
                assert reader.read_bytes == before
            else:  # a frame that is being written
                path = segment_of(Path(folder))
                whole = path.read_bytes()
                frame = journal_module._frame(journal.next_seq, [b"torn" * 9], journal._salt)
                path.write_bytes(whole + frame[:-1])
                begins, more = reader.more(LocalFiles(), folder)
                known = more if begins else known + more
                assert known == list(journal.replay())
                os.truncate(path, len(whole))


def test_a_reader_says_that_there_is_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        JournalReader().more(LocalFiles(), str(tmp_path))


def test_older_segments_stay_until_the_name_of_the_newest_is_on_the_disk(tmp_path, monkeypatch):
    """The newest one's writer died after a failed sync of the folder."""
    sync_folder = LocalFiles.sync_folder

    def failing(disk: LocalFiles, path: str) -> None:
        if path == str(tmp_path):
            raise OSError(5, "Input/output error", path)
        sync_folder(disk, path)

    journal = Journal(tmp_path)
    journal.append([b"a"])
    journal.commit()
    older = segment_of(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "sync_folder", failing)
        with pytest.raises(JournalBroken):
            journal.rotate([b"b"])
        journal._release()
        with pytest.raises(OSError, match="Input/output error"):
            Journal(tmp_path)
        assert older.exists()
    assert contents(tmp_path) == [b"b"]
    assert segment_of(tmp_path) != older


def test_a_frame_that_vouches_is_written_anew_at_each_start(tmp_path):
    written(tmp_path, [[b"a"], [b"b"]])
    for _ in range(3):
        assert contents(tmp_path) == [b"a", b"b"]
    size = segment_of(tmp_path).stat().st_size
    assert contents(tmp_path) == [b"a", b"b"]
    assert segment_of(tmp_path).stat().st_size == size, "one frame vouches for all"
