"""How often the simulator finds each deliberate mistake, and by which invariant.

``clonos sim --mutations`` prints it. The seeds that find one go into a file, from which the tests
take them: after a change of the protocol, other seeds do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from clonos.simulator.mistakes.mutations import MUTATIONS
from clonos.simulator.runs.seeds import Result, simulate


@dataclass
class Detection:
    """What became of one mutation in some seeds.

    ``found``: by which invariant, how often; ``first``, ``check``: the first seed in which the one
    that it breaks has found it, and the function that did.
    """

    name: str
    seeds: int = 0
    found: Counter[str] = field(default_factory=Counter)
    first: int | None = None
    check: str = ""

    @property
    def breaks(self) -> str:
        """The invariant that counts."""
        return MUTATIONS[self.name].breaks

    @property
    def caught(self) -> int:
        """How often it has found it."""
        return self.found[self.breaks]

    def count(self, result: Result) -> None:
        """Take one seed into account."""
        self.seeds += 1
        if result.verdict != "violation":
            return
        self.found[result.invariant] += 1
        if result.invariant == self.breaks and self.first is None:
            self.first, self.check = result.seed, result.check

    def line(self) -> str:
        """For a table."""
        others = ", ".join(f"{n} {i}" for i, n in self.found.most_common() if i != self.breaks)
        rate = f"{self.caught / self.seeds:.1%}" if self.seeds else ""
        first = "" if self.first is None else self.first
        counts = f"{self.caught:>5} of {self.seeds:<5} {rate:>6} {first:>7}"
        return f"{self.name:<56} {self.breaks:<20} {counts}  {others}"


HEAD = f"{'mutation':<56} {'invariant':<20} {'caught, of seeds, rate':>21} {'first':>7}  by others"


def run_mutated(name: str, seed: int) -> Result:
    """One seed of the kind in which a mutation is looked for, with the mistake built in.

    Unless it is they that must find it, machines are not asked for the soundness of their state:
    they see most mistakes before anything has come of them.
    """
    mutation = MUTATIONS[name]
    with mutation.active():
        checks_state = mutation.breaks == "sound state"
        return simulate(seed, mutation.kind, checks_state=checks_state)


def run_right(name: str, seed: int) -> Result:
    """The same seed without the mistake."""
    mutation = MUTATIONS[name]
    return simulate(seed, mutation.kind)


def detect(name: str, seeds: Iterable[int], *, enough: int) -> Detection:
    """Run `seeds` with one mutation, until it has been caught `enough` times."""
    detection = Detection(name)
    for seed in seeds:
        detection.count(run_mutated(name, seed))
        if detection.caught >= enough:
            break
    return detection


def detect_all(
    names: Iterable[str], seeds: range, *, enough: int, jobs: int
) -> Iterator[Detection]:
    """The same for many mutations, in their order."""
    with ProcessPoolExecutor(jobs) as pool:
        running = [pool.submit(detect, name, seeds, enough=enough) for name in names]
        for future in running:
            yield future.result()


def read_seeds(path: Path) -> dict[str, int]:
    """For each mutation, a seed that finds it."""
    seeds: dict[str, int] = json.loads(path.read_text("utf-8"))
    return seeds


def write_seeds(path: Path, found: Mapping[str, int | None]) -> None:
    """Update the file; what was not found keeps its seed."""
    known = read_seeds(path) if path.exists() else {}
    new = {name: seed for name, seed in found.items() if seed is not None}
    seeds = {name: new.get(name, known.get(name)) for name in MUTATIONS}
    kept = {name: seed for name, seed in seeds.items() if seed is not None}
    path.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
