"""The floors of a whole job as one value: those in use, and the hard ones.

Floors are *in use* as soon as enough processes have their layers: a lost task is restored there,
and no process keeps what lies below. They are *hard* when the journal records them: then log
entries below them are deleted, and input outside the job is given up. If tasks choose their levels
(:mod:`clonos.core.dial`), floors become hard only when all their layers are in the checkpoint
store; until then the journal keeps the logs that lead from the hard floors to those in use. In any
other job, floors are hard as soon as they are in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from clonos.core.history import Chains
from clonos.core.levels import LayerRef
from clonos.core.messages import Resolve

Positions = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Floors:
    """The places at which all tasks of a job can begin together.

    ``epoch``: how often floors had moved by then. ``positions``, ``layers``: by task. ``needs``: by
    channel, the last item that its receiver's floor has taken.
    """

    epoch: int
    generation: int
    positions: Positions
    layers: Chains
    needs: Positions

    @property
    def place(self) -> tuple[int, Positions, Chains, Positions]:
        """Everything but the generation."""
        return self.epoch, self.positions, self.layers, self.needs

    def moved(
        self, epoch: int, generation: int, positions: Positions, layers: Chains, needs: Positions
    ) -> Floors:
        """These floors, with some of them moved."""
        return Floors(
            epoch,
            generation,
            {**self.positions, **positions},
            {**self.layers, **layers},
            {**self.needs, **needs},
        )

    def since(self, before: Floors) -> tuple[Positions, Chains, Positions]:
        """What differs from earlier floors: positions, layers and needs."""
        layers = {t: chain for t, chain in self.layers.items() if chain != before.layers[t]}
        positions = {t: self.positions[t] for t in self.positions if t in layers}
        needs = {c: n for c, n in self.needs.items() if n != before.needs.get(c)}
        return positions, layers, needs

    def part_of(self, task: int, chain: Iterable[LayerRef]) -> tuple[LayerRef, ...]:
        """The layers of this chain up to the task's floor."""
        end = self.layers[task][-1].epoch if self.layers[task] else -1
        return tuple(ref for ref in chain if ref.epoch <= end)

    def shortened(self, task: int, chain: Iterable[LayerRef]) -> Floors:
        """These floors, after some of a task's layers were merged."""
        return replace(self, layers={**self.layers, task: self.part_of(task, chain)})


def cuts_still_needed(resolved: Iterable[Resolve], positions: Positions) -> list[Resolve]:
    """The cuts that are still needed: the newest of each task, because older log entries may come
    late; and those not below the floor, to judge entries beyond them.

    A cut that was forgiven is needed until a floor has passed it. That floor is of the new
    generation, so its receivers' floors have taken all items made before.
    """
    cuts = list(resolved)
    newest = {cut.task: cut for cut in cuts}
    return [cut for cut in cuts if cut is newest[cut.task] or cut.length >= positions[cut.task]]
