"""Calls in DBOS: what ``clonos-bench calls --parts dbos`` runs, with a Python that has DBOS.

Rows are asked about in workflows, each row in a step of its own. Started again, it goes on where it
was: a workflow is known by its name. It needs nothing of ours, and keeps books as
:mod:`clonos_bench.call_jobs` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from typing import Any, Final

from dbos import DBOS, SetWorkflowID

_EVENT: Final = struct.Struct("<qd?").pack
HOW: Final[dict[str, Any]] = json.loads(sys.argv[1])
"""``dsn``, ``folder``, ``rows``, ``call_s``, ``in_flight``,
``together`` (rows of a workflow)."""


def _book(kind: str) -> int:
    path = f"{HOW['folder']}/{os.getpid()}.{kind}"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


CALLS: Final = _book("calls")
OUTS: Final = _book("outs")


@DBOS.step()  # type: ignore[untyped-decorator]
async def ask(key: int) -> int:
    """The service."""
    os.write(CALLS, _EVENT(key, time.time(), False))
    await asyncio.sleep(HOW["call_s"])
    os.write(CALLS, _EVENT(key, time.time(), True))
    return key


@DBOS.workflow()  # type: ignore[untyped-decorator]
async def about(first: int, rows: int) -> list[int]:
    """Ask about consecutive rows at the same time."""
    return list(await asyncio.gather(*(ask(key) for key in range(first, first + rows))))


async def main() -> None:
    """All rows."""
    rows, together = HOW["rows"], HOW["together"]
    room = asyncio.Semaphore(max(1, HOW["in_flight"] // together))
    began_s = time.time()

    async def one(first: int) -> None:
        try:
            with SetWorkflowID(f"rows-{first}"):
                handle = await DBOS.start_workflow_async(about, first, min(together, rows - first))
            for key in await handle.get_result():
                os.write(OUTS, _EVENT(key, time.time(), True))
        finally:
            room.release()

    running = set()
    for first in range(0, rows, together):
        await room.acquire()
        task = asyncio.create_task(one(first))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    os.write(OUTS, _EVENT(-1, began_s, True))


if __name__ == "__main__":
    config: Any = {
        "name": "calls",
        "system_database_url": HOW["dsn"],
        "application_version": "1",
        "executor_id": "one",
        "log_level": "WARNING",
        "run_migrations": True,
        "sys_db_pool_size": 5,  # with more, and with the default of 20, it gets less done here
    }
    DBOS(config=config)
    DBOS.launch()
    asyncio.run(main())
    DBOS.destroy()
