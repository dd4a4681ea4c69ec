"""Which layers the driver deletes, and when."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from clonos.cluster.layers import LARGE_BYTES
from clonos.core.layer import merged_path
from clonos.core.levels import LayerRef
from clonos.core.merges import CHAIN_MAX, TIER_MAX
from clonos.core.plan import Incarnation
from clonos.errors import ClonosError
from clonos.nodes.events import Merged, MergeFailed, RoundBegins
from clonos.nodes.layers import AGAIN_S, LayerCare, Unused


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


MB = 1 << 20


def test_while_a_merge_takes_long_newer_layers_are_merged():
    store = Store()
    care = care_of(store)
    chain = tuple(ref(epoch, nbytes=20 * MB) for epoch in range(1, 10))
    care.after_floor({0: chain}, 0.0)
    assert store.merged == [tuple(range(1, 10))], "no more than eight large ones"
    longer = (*chain, *map(ref, range(10, 26)))
    care.after_floor({0: longer}, 1.0)
    assert len(store.merged) == 1, "16 more are not yet too many"
    longer = (*longer, ref(26))
    care.after_floor({0: longer}, 2.0)
    assert store.merged[1:] == [tuple(range(10, 27))]
    newer = ref(26, "0/newer")
    care.merged(Merged(newer, longer[9:]), (*chain, newer))
    longer = (*chain, newer, *map(ref, range(27, 43)))
    care.after_floor({0: longer}, 3.0)
    assert store.merged[2:] == [tuple(range(26, 43))], "what was merged takes part again"
    older = ref(9, "0/older", 180 * MB)
    care.merged(Merged(older, chain), (older, *longer[9:]))
    care.after_floor({0: (older, *longer[9:])}, 4.0)
    assert len(store.merged) == 3, "the oldest layer alone"


def test_of_each_tier_one_merge_is_under_way():
    store = Store()
    care = care_of(store)
    chain: tuple[LayerRef, ...] = ()
    for nbytes in (2000 * MB, 100 * MB, 20 * MB, 20 * MB, 2 * MB, 10, 10):
        newer = range(len(chain) + 1, len(chain) + 18)
        chain += tuple(ref(epoch, nbytes=nbytes) for epoch in newer)
        care.after_floor({0: chain}, 0.0)
    begun = [epochs[0] // 17 for epochs in store.merged]
    assert begun == [0, 1, 2, 4, 5]
    assert len(set().union(*store.merged)) == 17 * len(begun), "each layer in one of them"
    care.failed(MergeFailed(chain[34:51], ClonosError("away")), 0.0)
    care.after_floor({0: chain}, AGAIN_S + 1.0)
    assert store.merged[5:] == [tuple(range(35, 69))]


def longest_chain(sizes: list[int], seconds: Callable[[int], float], largest: int) -> int:
    """How many layers a task has at most if one of these comes every second.

    Parameters
    ----------
    seconds
        How long a merge takes, by its bytes. Small ones have a lane of their own.
    largest
        As keys are overwritten, no layer becomes larger than this.
    """
    store, chain, most = Store(), list[LayerRef](), 0
    care = care_of(store)
    under_way, free_at = list[tuple[float, tuple[LayerRef, ...]]](), [0.0, 0.0]
    for epoch, nbytes in enumerate(sizes, 1):
        chain.append(ref(epoch, nbytes=nbytes))
        for end, replaced in [each for each in under_way if each[0] <= epoch]:
            under_way.remove((end, replaced))
            size = min(sum(one.nbytes for one in replaced), largest)
            merged = ref(replaced[-1].epoch, f"0/merged {epoch} {replaced[0].epoch}", size)
            start = chain.index(replaced[0])
            chain[start : start + len(replaced)] = [merged]
            care.merged(Merged(merged, replaced), chain)
        begun = len(store.merged)
        care.after_floor({0: tuple(chain)}, 0.0)
        for epochs in store.merged[begun:]:
            chosen = tuple(one for one in chain if one.epoch in epochs)
            together = sum(one.nbytes for one in chosen)
            lane = together > LARGE_BYTES
            free_at[lane] = max(free_at[lane], epoch) + seconds(together)
            under_way.append((free_at[lane], chosen))
        most = max(most, len(chain))
    return most


def test_where_merges_are_slow_chains_do_not_grow_without_end():
    """Layers are sealed as fast as one merge after the other can take them."""
    assert longest_chain([10] * 5000, lambda _: CHAIN_MAX + 5, 2000) < 6 * CHAIN_MAX


def test_a_task_that_is_filled_with_gigabytes_keeps_few_layers():
    """At 30 MB/s; the processes that merge have little of the processors meanwhile."""
    slow = longest_chain([30 * MB] * 400, lambda nbytes: nbytes / (40 * MB), 1 << 40)
    assert slow < CHAIN_MAX + 4 * TIER_MAX


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


def test_of_a_large_merge_that_has_failed_the_newer_half_is_tried_and_later_all():
    store = Store()
    care = care_of(store)
    large = tuple(ref(epoch, nbytes=MB) for epoch in range(1, 18))
    small = tuple(map(ref, range(18, 35)))
    care.after_floor({0: large}, 0.0)
    care.after_floor({0: (*large, *small)}, 0.0)
    assert care.failed(MergeFailed(large, ClonosError("away")), 1.0)
    newer = ref(34, "0/newer", MB)
    chain = (*large, newer)
    care.merged(Merged(newer, small), chain)
    care.after_floor({0: chain}, 2.0)
    assert store.merged[2:] == [(*range(10, 18), 34)]
    assert care.failed(MergeFailed(chain[9:], ClonosError("away")), 3.0) is None, "known"
    care.after_floor({0: chain}, AGAIN_S)
    assert len(store.merged) == 3
    care.after_floor({0: chain}, AGAIN_S + 1.0)
    assert store.merged[3:] == [tuple(one.epoch for one in chain)]
    assert care.failed(MergeFailed(chain, ClonosError("away")), AGAIN_S + 2.0) is None, "known"
    care.merged(Merged(ref(34, "0/all"), chain), (ref(34, "0/all"),))
    assert care.failed(MergeFailed(chain, ClonosError("away")), 99.0), "all was merged meanwhile"


def longest_chain_without(can_be_merged: Callable[[Collection[LayerRef]], bool]) -> int:
    """How many layers there are at most, in 20 minutes with two a second."""
    store, most = Store(), 0
    care = care_of(store)
    chain = [ref(1, nbytes=100 * MB), *(ref(epoch, nbytes=20 * MB) for epoch in range(2, 10))]
    for turn in range(2400):
        chain.append(ref(10 + turn, nbytes=50_000))
        begun = len(store.merged)
        care.after_floor({0: tuple(chain)}, turn / 2)
        for epochs in store.merged[begun:]:
            chosen = tuple(one for one in chain if one.epoch in epochs)
            if can_be_merged(chosen):
                size = sum(one.nbytes for one in chosen)
                merged = ref(chosen[-1].epoch, f"0/merged {turn} {chosen[0].epoch}", size)
                start = chain.index(chosen[0])
                chain[start : start + len(chosen)] = [merged]
                care.merged(Merged(merged, chosen), chain)
            else:
                care.failed(MergeFailed(chosen, ClonosError("no")), turn / 2)
        most = max(most, len(chain))
    return most


def test_where_there_is_no_room_for_large_merges_small_ones_go_on():
    room = lambda chosen: sum(one.nbytes for one in chosen) < 200 * MB  # noqa: E731
    assert longest_chain_without(room) < 5 * CHAIN_MAX


def test_layers_are_merged_around_one_that_is_damaged():
    for damaged in (1, 5, 9, 20, 30):
        good = lambda chosen: damaged not in {one.epoch for one in chosen}  # noqa: B023, E731
        assert longest_chain_without(good) < 5 * CHAIN_MAX, damaged


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
