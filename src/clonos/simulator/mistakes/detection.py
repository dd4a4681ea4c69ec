"""How often the simulator finds each deliberate mistake, and by which invariant.

``clonos sim --mutations`` prints this. For each mistake, a seed that finds it goes into a file that
the tests read. After a change of the protocol, other seeds find it, and the file is made anew.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clonos.simulator.mistakes.mutations import MUTATIONS
from clonos.simulator.runs.kinds import Kind
from clonos.simulator.runs.seeds import Result, simulate


@dataclass
class Detection:
    """What became of one mutation in some seeds.

    ``found``: how often each invariant has found it; ``seed``, ``events``: the shortest simulation
    in which the right one did, and how many events it took; ``check``: the function that checked
    it; ``cpu_s``: CPU time.
    """

    name: str
    seeds: int = 0
    cpu_s: float = 0.0
    found: Counter[str] = field(default_factory=Counter)
    seed: int | None = None
    events: int = 0
    check: str = ""

    @property
    def breaks(self) -> str:
        """The invariant that must find it."""
        return MUTATIONS[self.name].breaks

    @property
    def caught(self) -> int:
        """How often that invariant has found it."""
        return self.found[self.breaks]

    def count(self, result: Result) -> None:
        """Take one seed into account."""
        self.seeds += 1
        if result.verdict != "violation":
            return
        self.found[result.invariant] += 1
        if result.invariant != self.breaks:
            return
        if self.seed is None or result.events < self.events:
            self.seed, self.events, self.check = result.seed, result.events, result.check

    def line(self) -> str:
        """One line of the table."""
        others = ", ".join(f"{n} {i}" for i, n in self.found.most_common() if i != self.breaks)
        rate = f"{self.caught / self.seeds:.1%}" if self.seeds else ""
        seed = "" if self.seed is None else self.seed
        per_minute = f"{60 * self.caught / self.cpu_s:.1f}" if self.cpu_s else ""
        counts = f"{self.caught:>5} of {self.seeds:<5} {rate:>6} {per_minute:>8} {seed:>7}"
        return f"{self.name:<56} {self.breaks:<20} {counts}  {others}"


HEAD = (
    f"{'mutation':<56} {'invariant':<20} {'caught, of seeds, rate':>21} {'/CPU min':>8} "
    f"{'seed':>7}  by others"
)


def kind_of(name: str, *, large: bool) -> Kind:
    """The kind of simulation in which a mutation is looked for."""
    kind = MUTATIONS[name].kind
    return kind._replace(large=True) if large else kind


def run_mutated(name: str, seed: int, *, large: bool = False) -> Result:
    """One seed of the kind in which a mutation is looked for, with the mistake built in.

    The machines' own consistency checks are off, unless they are to find the mistake: they would
    see most mistakes before another invariant is broken.
    """
    mutation = MUTATIONS[name]
    with mutation.active():
        checks_state = mutation.breaks == "sound state"
        return simulate(seed, kind_of(name, large=large), checks_state=checks_state)


def run_right(name: str, seed: int, *, large: bool = False) -> Result:
    """The same seed without the mistake."""
    return simulate(seed, kind_of(name, large=large))


def detect(
    name: str,
    seeds: Iterable[int],
    *,
    enough: int,
    seconds: float = float("inf"),
    large: bool = False,
) -> Detection:
    """Run `seeds` with one mutation, until it has been caught `enough` times, or for some time."""
    detection, began_s = Detection(name), time.process_time()
    for seed in seeds:
        detection.count(run_mutated(name, seed, large=large))
        detection.cpu_s = time.process_time() - began_s
        if detection.caught >= enough or detection.cpu_s >= seconds:
            break
    return detection


def detect_all(names: Iterable[str], seeds: range, *, jobs: int, **how: Any) -> Iterator[Detection]:
    """The same for many mutations, in their order; `how`: see :func:`detect`."""
    with ProcessPoolExecutor(jobs) as pool:
        running = [pool.submit(detect, name, seeds, **how) for name in names]
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
