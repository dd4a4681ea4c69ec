"""Which layers the driver deletes, and when."""

from __future__ import annotations

from typing import Any

from clonos.core.layer import merged_path
from clonos.core.levels import LayerRef
from clonos.core.plan import Incarnation
from clonos.nodes.events import Merged
from clonos.nodes.layers import LayerCare, Unused


class Store:
    """A :class:`~clonos.nodes.ports.Merger` that notes what is deleted."""

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def delete(self, paths: list[str]) -> None:
        self.deleted += paths

    def survey(self) -> None:
        pass


def ref(epoch: int, path: str = "") -> LayerRef:
    life = Incarnation(1, 0)
    return LayerRef(0, epoch, life, epoch, path or f"0/{epoch:012d}-1-0.layer", 10, 1)


def care_of(store: Any) -> LayerCare:
    return LayerCare(store, grace_s=10.0)


def test_what_a_survey_took_for_litter_stays_if_it_counts_by_now():
    store = Store()
    care = care_of(store)
    merged = merged_path([ref(1), ref(2)], 1)
    care.unused(Unused((merged, "0/old")), 0.0)  # the merge had just put it there
    care.clean(11.0, {merged})
    assert store.deleted == ["0/old"]
    care.clean(20.0, {merged})
    care.clean(22.0, ())
    assert store.deleted == ["0/old", merged], "some time after it was needed for the last time"


def test_a_merge_that_came_too_late_does_not_have_the_name_of_one_that_counts():
    """Layers 1 to 2 were merged while 2 and 3 were; that merge is void, and 1 to 3 are merged."""
    store = Store()
    care = care_of(store)
    first = ref(2, merged_path([ref(1), ref(2)], 1))
    late = ref(3, merged_path([ref(2), ref(3)], 1))
    care.unused(care.merged(Merged(late, (ref(2), ref(3))), [first, ref(3)]), 0.0)
    both = ref(3, merged_path([first, ref(3)], 1))
    care.unused(care.merged(Merged(both, (first, ref(3))), [both]), 1.0)
    care.clean(20.0, ())
    assert late.path in store.deleted
    assert both.path not in store.deleted
