"""``python -m examples.demo``, which ``./demo`` runs."""

from __future__ import annotations

import argparse
import os
import sys

import clonos
from examples.demo import run
from examples.demo.process import environment


def main() -> int:
    """Entry point; returns the exit code."""
    parser = argparse.ArgumentParser(prog="./demo", description=run.__doc__)
    run.add_arguments(parser)
    os.environ.update(environment())  # Spark's workers import the demo's functions
    try:
        return run.run(parser.parse_args())
    except clonos.ClonosError as error:
        sys.stderr.write(f"demo: {type(error).__name__}: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
