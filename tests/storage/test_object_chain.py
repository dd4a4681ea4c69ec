"""Writers of one chain under faults: what was acknowledged is there once, in order, and whoever was
fenced off writes nothing more. Every call of the store may fail, come late, or find that meanwhile
others have gone on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from random import Random

import pytest

from clonos.errors import UnreadableObjects
from clonos.storage.objects.chain import Chain, Fence
from clonos.storage.objects.tree import Tree

PATH = "/a"
SEEDS = 150
STEPS = 250


class Store:
    """Objects in memory. `between` is called before each call and may let others work."""

    place = "memory"

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.objects: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes]] = []
        self.between = lambda: None
        self.is_hurting = True

    def _may_fail(self, rate: float = 0.05) -> bool:
        return self.is_hurting and self.dice.random() < rate

    def _call(self) -> None:
        if self.is_hurting:
            self.between()
            if self.late and self.dice.random() < 0.2:
                name, content = self.late.pop(self.dice.randrange(len(self.late)))
                self.objects.setdefault(name, content)
        if self._may_fail():
            raise OSError("away")

    def create(self, name: str, content: bytes) -> bool:
        self._call()
        if self._may_fail(0.1):  # it comes later, or never
            self.late.append((name, content))
            raise OSError("no answer")
        if name in self.objects:
            return False
        self.objects[name] = content
        if self._may_fail(0.1):
            if self.dice.random() < 0.5:
                return False  # the client has tried again, and found its own
            raise OSError("the answer is lost")
        return True

    def put(self, name: str, content: bytes) -> None:
        self._call()
        self.objects[name] = content

    def read(self, name: str) -> bytes:
        self._call()
        if name not in self.objects:
            raise FileNotFoundError(name)
        return self.objects[name]

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        return [self.read(name) for name in names]

    def names(self, folder: str, after: str = "") -> list[str]:
        self._call()
        return sorted(n for n in self.objects if n.startswith(f"{folder}/") and n > after)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._call()
            self.objects.pop(name, None)


class World:
    """Writers that begin, append, put together and are killed, as the dice say."""

    def __init__(self, seed: int, chain: type[Chain]) -> None:
        self.dice = Random(seed)
        self.chain = chain
        self.store = Store(self.dice)
        self.store.between = self._others
        self.writers = [chain(self.store) for _ in range(3)]
        self.busy: set[int] = set()
        self.clock = 0
        self.tokens = 0
        self.acknowledged: list[tuple[int, int, bytes]] = []  # asked at, known at, what

    def _others(self) -> None:
        if len(self.busy) < len(self.writers) and self.dice.random() < 0.1:
            self.step()

    def step(self) -> None:
        """One of those that are not in the middle of something does something."""
        free = [n for n in range(len(self.writers)) if n not in self.busy]
        if not free:
            return
        number = self.dice.choice(free)
        self.busy.add(number)
        try:
            self._do(number)
        except OSError:
            pass
        finally:
            self.busy.discard(number)

    def _do(self, number: int) -> None:
        writer, what = self.writers[number], self.dice.random()
        if what < 0.03:
            self.writers[number] = self.chain(self.store)
        elif what < 0.13:
            writer.refresh()
            if not writer.is_ours and writer.begin("me") and PATH not in writer.tree.files:
                writer.add(writer.tree.write(PATH, b"", 1.0))
        elif what < 0.25 and writer.is_ours:
            base = writer.snapshot()
            writer.put_together(*base)
            writer.has_base(base[0])
        elif writer.is_ours and PATH in writer.tree.files:
            assert writer.fence is not None
            self.tokens += 1
            token = b"%d:%d;" % (writer.fence.number, self.tokens)
            self.clock += 1
            asked = self.clock
            if writer.add(writer.tree.append(PATH, token, 1.0)):
                self.clock += 1
                self.acknowledged.append((asked, self.clock, token))

    def check(self) -> None:
        """What a new reader finds."""
        self.store.is_hurting = False
        reader = self.chain(self.store)
        reader.refresh()
        self.store.is_hurting = True
        found = b""
        if PATH in reader.tree.files:
            found = reader.tree.read(PATH).to_pybytes()
        tokens = found.split(b";")[:-1]
        assert len(set(tokens)) == len(tokens), "something is there twice"
        fences = [int(token.split(b":")[0]) for token in tokens]
        assert fences == sorted(fences), "somebody has written who was fenced off"
        place = {token + b";": n for n, token in enumerate(tokens)}
        missing = [token for _, _, token in self.acknowledged if token not in place]
        assert not missing, "something is lost that was acknowledged"
        ordered = sorted(self.acknowledged, key=lambda each: place[each[2]])
        for (_, known, _), (asked, _, _) in zip(ordered[1:], ordered, strict=False):
            assert known > asked, "something stands before what was known when it was asked"


def run(seed: int, chain: type[Chain] = Chain) -> World:
    """A world after all its steps."""
    world = World(seed, chain)
    for step in range(STEPS):
        world.step()
        if step % 25 == 0 and not world.busy:
            world.check()
    world.check()
    return world


@pytest.mark.parametrize("part", range(5))
def test_writers_under_faults(part):
    written = begun = together = 0
    for seed in range(part * SEEDS // 5, (part + 1) * SEEDS // 5):
        try:
            world = run(seed)
        except BaseException:
            sys.stderr.write(f"replay with run({seed})\n")
            raise
        written += len(world.acknowledged)
        begun += len({token.split(b":")[0] for _, _, token in world.acknowledged})
        together += any(name.startswith("bases/") for name in world.store.objects)
    assert written > 500
    assert begun > 60
    assert together > 15


class FencesGo(Chain):
    """Fences are deleted with the changes around them."""

    def put_together(self, number, content, fences):
        super().put_together(number, content, [])


class OnlyFencesStay(Chain):
    """The change before a fence is deleted."""

    def put_together(self, number, content, fences):
        objects, self._objects = self._objects, _Sparing(self._objects, fences)
        try:
            super().put_together(number, content, [])
        finally:
            self._objects = objects


class _Sparing:
    def __init__(self, objects, fences):
        self._of, self._kept = objects, {f"changes/{n:015d}" for n in fences}

    def __getattr__(self, name):
        return getattr(self._of, name)

    def delete(self, names):
        self._of.delete([name for name in names if name not in self._kept])


class NobodyLooks(Chain):
    """Whoever begins does not look whether the number is old."""

    def begin(self, holder):
        return self.add(("fence", holder))


class LooksBefore(Chain):
    """It is looked at before the fence is there, when another one may yet go on."""

    def begin(self, holder):
        return self._newest_base() <= self.last and self.add(("fence", holder))


class Overwrites(Chain):
    """The store does not refuse."""

    def __init__(self, objects):
        super().__init__(objects)
        self._objects = _Overwriting(objects)


class _Overwriting:
    def __init__(self, objects):
        self._of = objects

    def __getattr__(self, name):
        return getattr(self._of, name)

    def create(self, name, content):
        self._of.put(name, content)
        return True


class NoBaseIsSeen(Chain):
    """Who follows does not look for a base."""

    def _newest_base(self):
        return 0


class DeletesFirst(Chain):
    """Changes are deleted before their base is there."""

    def put_together(self, number, content, fences):
        kept = {f"changes/{n:015d}" for f in fences for n in (f - 1, f)}
        names = self._objects.names("changes")
        old = [n for n in names if int(n[-15:]) <= number and n not in kept]
        self._objects.delete(old)
        super().put_together(number, content, fences)


@pytest.mark.parametrize(
    "mistake",
    [FencesGo, OnlyFencesStay, NobodyLooks, LooksBefore, Overwrites, NoBaseIsSeen, DeletesFirst],
)
def test_a_mistake_is_found(mistake):
    for seed in range(4000):
        try:
            run(seed, mistake)
        except (AssertionError, UnreadableObjects):
            return
    pytest.fail(f"nothing has come of {mistake.__name__}")


def test_a_number_that_is_free_again_stops_nobody():
    """Who has slept for so long that his next number was put together begins nothing with it."""
    store = Store(Random(1))
    store.is_hurting = False
    one, sleeper = Chain(store), Chain(store)
    assert one.begin("one")
    one.add(one.tree.write(PATH, b"", 1.0))
    sleeper.refresh()
    one.add(one.tree.append(PATH, b"x", 1.0))
    one.put_together(*one.snapshot())
    assert not sleeper.begin("sleeper")
    sleeper.refresh()
    assert one.fence is not None
    assert sleeper.fence == Fence(1, one.fence.writer, "one", is_free=False)
    assert sleeper.tree.read(PATH).to_pybytes() == b"x"


def test_damage_is_seen():
    store = Store(Random(1))
    store.is_hurting = False
    chain = Chain(store)
    chain.begin("me")
    chain.add(chain.tree.write(PATH, b"content", 1.0))
    name = max(store.objects)
    store.objects[name] = store.objects[name].replace(b"content", b"contemt")
    with pytest.raises(UnreadableObjects, match="not what was written"):
        Chain(store).refresh()


def test_a_change_that_is_missing_is_seen():
    store = Store(Random(1))
    store.is_hurting = False
    chain = Chain(store)
    chain.begin("me")
    for content in (b"1", b"2"):
        chain.add(chain.tree.write(PATH, content, 1.0))
    del store.objects["changes/000000000000002"]
    with pytest.raises(UnreadableObjects, match="missing"):
        Chain(store).refresh()


def test_a_tree_is_the_same_as_a_value():
    tree = Tree()
    folder = tree.make_folder("/x/y")
    assert folder is not None
    tree.apply(folder)
    tree.apply(tree.write("/x/y/a", b"1", 2.0))
    tree.apply(tree.append("/x/y/a", b"2", 3.0))
    again = Tree.of(tree.value())
    assert again.read("/x/y/a").to_pybytes() == b"12"
    assert again.entries("", recursive=True) == tree.entries("", recursive=True)
