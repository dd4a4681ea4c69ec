"""How much memory is left to a process, on machines and in containers of all kinds."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from clonos.runtime.memory_left import LOOK_S, MemoryLeft, give_back

PAGE = os.sysconf("SC_PAGE_SIZE")
MACHINE = {"proc/self/statm": "5000 1200 200 1 0 900 0\n", "proc/self/cgroup": ""}
MEMORY = "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    4000 kB\n"


def group(folder, limit, used, cache, *, names=("memory.max", "memory.current", "inactive_file")):
    return {
        f"sys/fs/cgroup/{folder}{names[0]}": f"{limit}\n",
        f"sys/fs/cgroup/{folder}{names[1]}": f"{used}\n",
        f"sys/fs/cgroup/{folder}memory.stat": f"active_file 5\n{names[2]} {cache}\n",
    }


FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
OUTER = group("spark/", 1_000_000, 900_000, 50_000)


@pytest.mark.parametrize(
    ("files", "left"),
    [
        ({}, 4000 * 1024),
        ({"proc/self/cgroup": "0::/\n", **group("", 1_000_000, 400_000, 100_000)}, 700_000),
        ({"proc/self/cgroup": "0::/\n", **group("", "max", 400_000, 100_000)}, 4000 * 1024),
        ({"proc/self/cgroup": "0::/spark/worker\n", **OUTER}, 150_000),
        ({"proc/self/cgroup": "0::/not/mounted/here\n", **group("", 100_000, 400_000, 0)}, 0),
        (
            {
                "proc/self/cgroup": "4:cpu,memory:/docker/abc\n3:pids:/\n",
                **group("memory/", 2_000_000, 1_500_000, 0, names=FIRST),
            },
            500_000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n",
                **group("memory/", 9223372036854771712, 1_500_000, 0, names=FIRST),
            },
            4000 * 1024,
        ),
    ],
)
def test_the_least_of_what_there_is_counts(tmp_path, files, left):
    for name, text in {**MACHINE, "proc/meminfo": MEMORY, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert MemoryLeft(tmp_path)() == (1000 * PAGE, left)


def test_it_is_not_looked_at_all_the_time(tmp_path):
    now = [100.0]
    room = MemoryLeft(tmp_path, lambda: now[0])
    assert room() == (0, 0)  # a system that says nothing
    for name, text in {**MACHINE, "proc/meminfo": MEMORY}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    now[0] += 0.9 * LOOK_S
    assert room() == (0, 0)
    now[0] += 0.2 * LOOK_S
    assert room() == (1000 * PAGE, 4000 * 1024)


def test_what_threads_have_freed_is_given_back():
    """The last of what each thread has made keeps all that was made before it."""

    def anonymous() -> int:
        (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x)
        return int(line.split()[1]) * 1024

    ends: list[bytes] = []

    def work() -> None:
        made = [bytes(2_000) for _ in range(20_000)]
        ends.append(bytes(2_000))
        del made

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    before = anonymous()
    give_back()
    assert anonymous() < before - 20_000_000
    assert len(ends) == 1
