"""Which layers the driver deletes, and when."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from clonos.core.layer import CHAIN_MAX, merged_path
from clonos.core.levels import LayerRef
from clonos.core.plan import Incarnation
from clonos.errors import ClonosError
from clonos.nodes.events import Merged, MergeFailed, RoundBegins
from clonos.nodes.layers import AGAIN_S, MERGES_MAX, LayerCare, Unused


class Store:
    """A :class:`~clonos.nodes.ports.Merger` that notes what is deleted."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.merged: list[tuple[int, ...]] = []

    def merge(self, _: object, chosen: tuple[LayerRef, ...]) -> None:
        self.merged.append(tuple(ref.epoch for ref in chosen))

    def delete(self, paths: list[str]) -> None:
        self.deleted += paths

    def survey(self) -> None:
        pass


def ref(epoch: int, path: str = "", nbytes: int = 10) -> LayerRef:
    life = Incarnation(1, 0)
    return LayerRef(0, epoch, life, epoch, path or f"0/{epoch:012d}-1-0.layer", nbytes, 1)


def care_of(store: Any) -> LayerCare:
    return LayerCare(store, grace_s=10.0)


def clean(care: LayerCare, now_s: float, used: Collection[str], *, may_delete: bool = True) -> None:
    """In a group that is durable at once."""
    for act in care.clean(now_s, used):
        care.act(act, now_s, used, may_delete=may_delete)


def test_what_a_survey_took_for_litter_stays_if_it_counts_by_now():
    store = Store()
    care = care_of(store)
    merged = merged_path([ref(1), ref(2)], 1)
    care.unused(Unused((merged, "0/old")), 0.0)  # the merge had just put it there
    clean(care, 11.0, {merged})
    assert store.deleted == ["0/old"]
    clean(care, 20.0, {merged})
    clean(care, 22.0, ())
    assert store.deleted == ["0/old", merged], "some time after it was needed for the last time"


def test_what_is_still_to_go_stays_if_it_counts_by_then_or_another_driver_may_run():
    store = Store()
    care = care_of(store)
    care.unused(Unused(("0/late", "0/old")), 0.0)
    clean(care, 11.0, (), may_delete=False)
    assert store.deleted == []
    (going,) = care.clean(22.0, ())
    care.act(going, 40.0, {"0/late"}, may_delete=True)
    assert store.deleted == ["0/old"]


def test_a_merge_that_came_too_late_does_not_have_the_name_of_one_that_counts():
    """Layers 1 to 2 were merged while 2 and 3 were; that merge is void, and 1 to 3 are merged."""
    store = Store()
    care = care_of(store)
    first = ref(2, merged_path([ref(1), ref(2)], 1))
    late = ref(3, merged_path([ref(2), ref(3)], 1))
    care.unused(care.merged(Merged(late, (ref(2), ref(3))), [first, ref(3)]), 0.0)
    both = ref(3, merged_path([first, ref(3)], 1))
    care.unused(care.merged(Merged(both, (first, ref(3))), [both]), 1.0)
    clean(care, 20.0, ())
    assert late.path in store.deleted
    assert both.path not in store.deleted


def test_while_state_is_shared_out_no_merge_reaches_across_what_was():
    store = Store()
    care = care_of(store)
    chain = tuple(map(ref, range(1, 11)))
    listed: list[Any] = []
    care.round(RoundBegins(listed.append), {0: chain})
    assert listed == [{0: chain}]
    longer = tuple(map(ref, range(1, 27)))
    care.after_floor({0: longer}, 0.0)
    assert not store.merged, "26 layers, and 16 are new"
    longer = tuple(map(ref, range(1, 28)))
    care.after_floor({0: longer}, 0.0)
    assert store.merged == [tuple(range(11, 28))]
    care.merged(Merged(ref(27, "0/merged"), longer[10:]), (*chain, ref(27, "0/merged")))
    care.round(RoundBegins(None), {})
    care.after_floor({0: longer}, 0.0)
    assert store.merged[1:] == [tuple(range(1, 28))], "as ever"


def test_while_a_merge_takes_long_newer_layers_are_merged():
    store = Store()
    care = care_of(store)
    chain = tuple(ref(epoch, nbytes=20) for epoch in range(1, 18))
    care.after_floor({0: chain}, 0.0)
    longer = (*chain, *map(ref, range(18, 34)))
    care.after_floor({0: longer}, 1.0)
    assert store.merged == [tuple(range(1, 18))], "16 more are not yet too many"
    longer = (*longer, ref(34))
    care.after_floor({0: longer}, 2.0)
    assert store.merged[1:] == [tuple(range(18, 35))]
    newer = ref(34, "0/newer")
    care.merged(Merged(newer, longer[17:]), (*chain, newer))
    longer = (*chain, newer, *map(ref, range(35, 51)))
    care.after_floor({0: longer}, 3.0)
    assert store.merged[2:] == [tuple(range(34, 51))], "what was merged takes part again"
    older = ref(17, "0/older")
    care.merged(Merged(older, chain), (older, *longer[17:]))
    care.after_floor({0: (older, *longer[17:])}, 4.0)
    assert len(store.merged) == 3, "the oldest layer alone"


def test_no_more_than_some_merges_of_a_task_are_under_way():
    store = Store()
    care = care_of(store)
    chain: tuple[LayerRef, ...] = ()
    for n in range(3 * MERGES_MAX):
        newer = range(len(chain) + 1, len(chain) + 18)
        chain += tuple(ref(epoch, nbytes=10 << 3 * MERGES_MAX - n) for epoch in newer)
        care.after_floor({0: chain}, 0.0)
    assert len(store.merged) == MERGES_MAX
    assert len(set().union(*store.merged)) == 17 * MERGES_MAX, "each layer in one of them"


def test_where_merges_are_slow_chains_do_not_grow_without_end():
    """Layers are sealed as fast as one merge after the other can take them."""
    store, chain, longest = Store(), list[LayerRef](), 0
    care = care_of(store)
    under_way, free_at = list[tuple[int, tuple[int, ...]]](), 0
    for epoch in range(1, 5000):
        chain.append(ref(epoch))
        if under_way and under_way[0][0] == epoch:
            _, epochs = under_way.pop(0)
            replaced = tuple(one for one in chain if one.epoch in epochs)
            nbytes = min(sum(one.nbytes for one in replaced), 2000)  # keys are overwritten
            merged = ref(epochs[-1], f"0/merged {epoch}", nbytes)
            start = chain.index(replaced[0])
            chain[start : start + len(replaced)] = [merged]
            care.merged(Merged(merged, replaced), chain)
        begun = len(store.merged)
        care.after_floor({0: tuple(chain)}, 0.0)
        for epochs in store.merged[begun:]:
            free_at = max(free_at, epoch) + CHAIN_MAX + 5  # one lane
            under_way.append((free_at, epochs))
        longest = max(longest, len(chain))
    assert longest < 6 * CHAIN_MAX


def test_a_merge_that_has_failed_is_tried_again_later():
    store = Store()
    care = care_of(store)
    chain = tuple(map(ref, range(1, 18)))
    care.after_floor({0: chain}, 0.0)
    assert care.failed(MergeFailed(chain, ClonosError("away")), 1.0)
    care.after_floor({0: chain}, AGAIN_S)
    assert len(store.merged) == 1
    care.after_floor({0: chain}, AGAIN_S + 1.0)
    assert store.merged == [tuple(range(1, 18))] * 2


def test_a_large_merge_that_has_failed_waits_though_a_small_one_has_not():
    store = Store()
    care = care_of(store)
    large = tuple(ref(epoch, nbytes=1000) for epoch in range(1, 18))
    small = tuple(map(ref, range(18, 35)))
    care.after_floor({0: large}, 0.0)
    care.after_floor({0: (*large, *small)}, 0.0)
    assert care.failed(MergeFailed(large, ClonosError("away")), 1.0)
    newer = ref(34, "0/newer", 170)
    chain = (*large, newer)
    care.merged(Merged(newer, small), chain)
    care.after_floor({0: chain}, 2.0)
    assert len(store.merged) == 2
    care.after_floor({0: chain}, AGAIN_S + 1.0)
    assert store.merged[2:] == [tuple(one.epoch for one in chain)]
    assert care.failed(MergeFailed(chain, ClonosError("away")), AGAIN_S + 2.0) is None, "known"
    care.merged(Merged(ref(34, "0/all"), chain), (ref(34, "0/all"),))
    assert care.failed(MergeFailed(chain, ClonosError("away")), 99.0), "all was merged meanwhile"


def test_a_task_without_layers_when_a_round_began_has_its_layers_merged():
    store = Store()
    care = care_of(store)
    care.round(RoundBegins(lambda _: None), {0: ()})
    care.after_floor({0: tuple(map(ref, range(1, 18)))}, 0.0)
    assert store.merged == [tuple(range(1, 18))]


def test_nothing_is_deleted_while_state_is_shared_out():
    store = Store()
    care = care_of(store)
    care.unused(Unused(("0/old",)), 0.0)
    assert care.is_due(11.0)
    care.round(RoundBegins(lambda _: None), {})
    assert not care.is_due(1e9)
    care.round(RoundBegins(None), {})
    assert care.is_due(11.0)
    clean(care, 11.0, ())
    assert store.deleted == ["0/old"]
