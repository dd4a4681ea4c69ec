"""The ``clonos`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

from clonos.errors import ClonosError
from clonos.version import VERSION


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of the ``clonos`` command; returns its exit code, 2 for an error."""
    parser = argparse.ArgumentParser(
        prog="clonos", epilog="clonos COMMAND --help lists the options of a command"
    )
    parser.add_argument("--version", action="version", version=f"clonos {VERSION}")
    chooser = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (summary, add, run) in commands().items():
        command = chooser.add_parser(name, help=summary, description=summary)
        add(command)
        command.set_defaults(run=run)
    chosen = parser.parse_args(arguments)
    if chosen.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        code: int = chosen.run(chosen)
    except ClonosError as error:
        sys.stderr.write(f"clonos: {type(error).__name__}: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return code


Command = tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[Any], int]]


def commands() -> dict[str, Command]:
    """By name: what each does, its arguments, and how it is run."""
    from clonos.branch import bundle_command as bundling
    from clonos.branch import command as branch
    from clonos.replay import command as replay
    from clonos.replay import history, rewind
    from clonos.simulator import command as sim
    from clonos.testing.determinism import command as check
    from clonos.watch import command as watch

    return {
        "branch": (branch.SUMMARY, branch.add_arguments, branch.run),
        "bundle": (bundling.SUMMARY, bundling.add_arguments, bundling.run),
        "check": (check.SUMMARY, check.add_arguments, check.run),
        "history": (history.SUMMARY, history.add_arguments, history.run),
        "replay": (replay.SUMMARY, replay.add_arguments, replay.run),
        "rewind": (rewind.SUMMARY, rewind.add_arguments, rewind.run),
        "sim": ("a whole cluster in one thread, under faults", sim.add_arguments, sim.run),
        "watch": (watch.SUMMARY, watch.add_arguments, watch.run),
    }
