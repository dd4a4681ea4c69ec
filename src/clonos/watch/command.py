"""``clonos watch``: a running job in the terminal."""

from __future__ import annotations

import argparse
import json
import time
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from clonos.errors import NothingToWatch
from clonos.watch.server import ADDRESS_FILE, HOST
from clonos.watch.snapshot import Snapshot
from clonos.watch.terminal import rich, terminal

SUMMARY: Final = "show a running job in the terminal"
EVERY_S: Final = 1.0
ANSWER_S: Final = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``clonos watch``."""
    parser.add_argument(
        "job",
        metavar="DIR|URL",
        help="the job's checkpoint_dir (or its journal's folder), or running.ui_url",
    )
    parser.add_argument("--once", action="store_true", help="show it once, and end")
    parser.add_argument("--json", action="store_true", help="the same as one line of JSON")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when the job has ended, or was shown once."""
    url = address(args.job)
    job = look(url)
    if args.json:
        print(json.dumps(job))
        return 0
    if args.once:
        rich("console").Console().print(terminal(job))
        return 0
    with rich("live").Live(terminal(job), auto_refresh=False, vertical_overflow="crop") as live:
        while job["is_running"]:
            time.sleep(EVERY_S)
            try:
                job = look(url)
            except NothingToWatch:
                break
            live.update(terminal(job), refresh=True)
    print("the job has ended, or its driver has")
    return 0


def address(job: str) -> str:
    """The page of a job, by its URL or folder.

    Raises
    ------
    NothingToWatch
        The job has no page.
    """
    if "://" in job:
        return job if job.endswith("/") else f"{job}/"
    note = Path(job) / ADDRESS_FILE
    try:
        return note.read_text("utf-8").strip()
    except OSError as error:
        raise NothingToWatch(
            f"{note}, where a running job writes the URL of its page, cannot be read "
            f"({error.strerror})",
            remedy="start the job with ui_port=0, and give its checkpoint_dir or running.ui_url",
        ) from None


def look(url: str) -> Snapshot:
    """The present state of a job.

    Raises
    ------
    NothingToWatch
        Its page does not answer.
    """
    if not _is_here(url):
        raise NothingToWatch(
            f"the page of a job is at http://{HOST}:PORT/..., but this URL is not",
            remedy="on another machine, forward the port first: ssh -L PORT:127.0.0.1:PORT driver",
        )
    try:
        with build_opener(ProxyHandler({})).open(f"{url}snapshot", timeout=ANSWER_S) as answer:
            job: Snapshot = _printable(json.load(answer))
    except HTTPError as error:
        raise NothingToWatch(
            f"the page answers {error.code}: this is not the URL of a running job",
            remedy="take running.ui_url as it is, with its secret",
        ) from None
    except (URLError, OSError, HTTPException, ValueError) as error:
        said: Any = getattr(error, "reason", error)
        raise NothingToWatch(
            f"the page does not answer ({said}): the job has ended, or its driver has died",
            remedy="start the job again, with ui_port=0",
        ) from None
    return job


def _is_here(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme == "http" and parts.hostname in (HOST, "localhost")


def _printable(value: Any) -> Any:
    """The same without what would command a terminal: a warning may have values of rows."""
    if isinstance(value, dict):
        return {key: _printable(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_printable(held) for held in value]
    if isinstance(value, str):
        return "".join(one if one.isprintable() or one == "\n" else "\ufffd" for one in value)
    return value
