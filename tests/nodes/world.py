"""All that a driver's node has to do with, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clonos.core import messages as msg
from clonos.core.history import Chains, Keep
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.levels import LayerRef
from clonos.core.notes import Note
from clonos.core.plan import HOUSE_KEEPER, ChannelSpec, Plan, TaskSpec
from clonos.errors import ClonosError
from clonos.nodes.driver import DriverNode
from clonos.nodes.ports import DriverPorts
from clonos.nodes.pulses import LOOK_MAX_S
from clonos.nodes.settings import DriverSettings
from clonos.nodes.tenure import Sight, TermSeen
from clonos.nodes.versions import HASH_SEED
from clonos.nodes.views import Sample
from clonos.transport.events import (
    ControlOpened,
    Heartbeat,
    Register,
)
from tests.link import Link

PLAN = Plan(
    (TaskSpec(0, "lines[0]", "lines", 0, (), (0,), is_source=True, sink="out"),),
    (ChannelSpec(0, 0, HOUSE_KEEPER, 0),),
    0,
)
SILENCE_S = 1.5


class SparkIsGone(ClonosError):
    """Says nothing against the job."""


def injected(link: Link) -> list[int]:
    """The epochs whose markers tasks were told to take."""
    commands = [told.command for told in link.sent if isinstance(told, msg.ToTask)]
    return [command.epoch for command in commands if isinstance(command, msg.Inject)]


class World:
    """All ports of a driver, and its clock."""

    retries = True  # Spark starts processes again

    def __init__(
        self,
        records: Sequence[bytes] = (),
        keep: Keep | None = None,
        delivered: Mapping[str, int] | None = None,
    ) -> None:
        self.now_s = 100.0
        self.records = list(records)
        self.is_slow = self.is_broken = False
        self.in_the_way: ClonosError | None = None
        self.nbytes = 0  # of the journal, and of outputs without a file
        self.rotations = self.begun = self.proofs = 0
        self.outputs: list[Deliver] = []
        self.launched: list[tuple[int, int]] = []
        self.cancelled: list[int] = []
        self.merges: list[Sequence[LayerRef]] = []
        self.deleted: list[str] = []
        self.may_delete, self.surveys = False, 0
        self.heard: list[Any] = []
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.archived: list[tuple[int, str, bytes]] = []
        self.going = 0
        self.kept: Chains = {}
        self.keeper = HouseKeeper(PLAN, lambda batch: batch.payload, lambda content: content, keep)
        recovered = self.keeper.recover(self.records)
        settings = DriverSettings(
            name="etl",
            run_id="etl-1",
            address="here",
            places=(None, None),
            operators={0: ("lines", "out")},
            silence_s=SILENCE_S,
            delivered=delivered or {},
            interruptions=(SparkIsGone,),
        )
        self.is_asked = False
        self.sight: Sight | None = Sight.OURS
        ports = DriverPorts(self, self, self, self, self, self, self)
        self.node = DriverNode(self.keeper, recovered, ports, settings)

    # the clock
    def ticks_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    # the journal
    def append(self, records: Sequence[bytes]) -> bool:
        if not self.is_slow and not self.is_broken:
            self.records += records
            return True
        return False

    def prove(self) -> bool:
        self.proofs += 1
        return self.append([])

    def rotate(self, head: Sequence[bytes]) -> bool:
        self.rotations += 1
        if self.is_broken:
            return False
        self.records = list(head)
        return True

    # outputs
    def take(self, output: Deliver) -> None:
        self.outputs.append(output)

    def begin_flush(self) -> None:
        self.begun += 1

    def flush(self) -> ClonosError | None:
        return self.in_the_way

    # the launcher
    def launch(self, place: int, attempt: int) -> None:
        self.launched.append((place, attempt))

    def cancel(self, attempt: int) -> None:
        self.cancelled.append(attempt)

    def describe(self, task: str, text: str) -> None:
        pass

    # the merger
    def merge(self, chain: Sequence[LayerRef], chosen: Sequence[LayerRef]) -> None:
        self.merges.append(chosen)

    def delete(self, paths: Sequence[str]) -> None:
        assert self.may_delete, "too soon"
        self.deleted += paths

    def survey(self, going: int = 0) -> None:
        self.surveys += 1
        self.going = going or self.going

    def archive(self, number: int, path: str, content: bytes) -> None:
        self.archived.append((number, path, content))

    # the audience
    def noted(self, note: Note, at_s: float) -> None:
        self.notes.append(note.what)

    def sampled(self, sample: Sample) -> None:
        pass

    def told(self, what: Any) -> None:
        self.heard.append(what)

    def warned(self, text: str) -> None:
        self.warnings.append(text)

    def floor(self, layers: Chains, kept: Chains) -> None:
        self.kept = kept

    # the lookout
    def look(self) -> None:
        assert not self.is_asked
        self.is_asked = True

    # what happens
    def turn(self, *heard: Any, after_s: float = 0.0) -> float:
        self.now_s += after_s
        wait_s = self.node.turn(heard)
        while self.is_asked and self.sight is not None:
            self.is_asked = False
            wait_s = self.node.turn([TermSeen(self.sight)])
        self.node.check()
        return wait_s

    def registers(self, place: int, conn: int) -> Link:
        link = Link(conn)
        versions = {HASH_SEED: "0"}
        register = Register(place, 1, "nonce", "node", "1", 10, conn, f"there:{conn}", versions)
        self.turn(ControlOpened(conn, register, link))
        return link

    def passes(self, seconds: float, *beating: int) -> None:
        """Time goes by, in which these slots beat."""
        for _ in range(round(seconds / LOOK_MAX_S)):
            self.turn(*((slot, Heartbeat("nonce", 0)) for slot in beating), after_s=LOOK_MAX_S)

    def begin(self) -> Link:
        """The job runs: its task is live in slot 1."""
        self.node.start()
        link = self.registers(0, 1)
        (activate,) = [c for c in link.sent if isinstance(c, msg.Activate)]
        life = activate.incarnation
        self.turn((1, msg.Restored(0, life)), (1, msg.Live(0, life, 0)))
        return link

    def epoch_is_complete(self) -> None:
        """Which the journal has to know."""
        epoch = self.node.coordinator.checkpoints.pending_epoch
        life = self.node.coordinator.tasks[0].incarnation
        ref = LayerRef(0, epoch, life, 0, "path", 1, 0)
        self.turn((1, msg.LayerAck(0, life, ref, {}, {}, {})))

    def epoch(self, link: Link) -> int:
        return injected(link)[-1]
