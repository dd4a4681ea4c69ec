"""Layers that this slot keeps, because no checkpoint store has them.

The coordinator says which layers belong here (:class:`~clonos.core.levels.Hold`). Those that are
not here are fetched from the slots that it names (the *sources*), part by part, each layer on its
own connection; other slots are served in the same way. If a source does not answer in time, or has
something else, the next one is asked; after the last one the first is asked again, until the
coordinator says otherwise.

A disk may have lost or changed what was on it. A layer that cannot be read is looked for. If it is
gone, the slot tells the coordinator, and fetches it like a layer that was never here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final

from clonos.core.levels import (
    LOCAL,
    SHELF,
    STORE,
    Discard,
    Held,
    Hold,
    Lacks,
    LayerPart,
    LayerRef,
    LayersHere,
    LayersMerged,
    LayerWanted,
    MergeLayers,
)
from clonos.core.plan import NOBODY, Incarnation
from clonos.errors import PeerUnreachable, UnreadableLayer
from clonos.nodes.events import FetchFailed, Kept, Looked, MergedHere, PartRead
from clonos.nodes.ports import SlotPorts
from clonos.transport.events import ChannelClosed, ChannelOpened, Connection

ANSWER_S: Final = 2.0
"""A source that sends nothing for this long is left for the next one."""
AGAIN_S: Final = 0.05
"""When no source had a layer, they are asked again after this time."""


_Wanted = tuple[Sequence[LayerRef], Sequence[LayerRef]]
"""Layers that must be here, and those of them that are to be read."""


@dataclass
class _Transfer:
    """A layer that is being fetched from a source, or waits for one."""

    ref: LayerRef
    turn: int = 0
    """How many times a source was asked: the next source is this number modulo their count."""
    connection: Connection | None = None
    parts: list[bytes] = field(default_factory=list)
    nbytes: int = 0
    due_s: float = 0.0
    """When to go on to the next source, or to ask the first."""
    is_kept: bool = False
    """Whether all parts are here and the layer is being written."""


class Keeping:
    """The layers that one slot keeps, and those that it fetches.

    Parameters
    ----------
    tickets
        Numbers for requests to the store.
    send
        Takes reports for the coordinator.
    fetch_failed
        Called for a request whose layers will never be here.
    """

    def __init__(
        self,
        ports: SlotPorts,
        tickets: Iterator[int],
        send: Callable[[Any], None],
        fetch_failed: Callable[[FetchFailed], None],
    ) -> None:
        self._ports, self._tickets, self._send = ports, tickets, send
        self._fetch_failed = fetch_failed
        self._holds: dict[int, Hold] = {}  # by task
        self._here: dict[str, LayerRef] = {}
        self._sealed: dict[str, LayerRef] = {}  # sealed by lives in this process
        self._looking: dict[int, tuple[LayerRef, ...]] = {}  # by ticket
        self._transfers: dict[str, _Transfer] = {}
        self._keeping: dict[int, LayerRef] = {}  # by ticket
        self._waiting: dict[int, _Wanted] = {}  # by ticket
        self._fetching: dict[int, _Wanted] = {}  # by ticket
        self._failed: dict[int, tuple[FetchFailed, _Wanted]] = {}  # by ticket of the look
        self._guests: dict[int, Connection] = {}
        self._reading: dict[int, tuple[int, LayerRef]] = {}  # by ticket: connection, layer
        self._merging: dict[int, MergeLayers] = {}  # by ticket

    # --- what is to be here ---------------------------------------------------------------------

    def hold(self, command: Hold) -> None:
        """Keep these layers of a task, and no others that earlier lives of it have sealed."""
        named = {ref.path for ref in command.layers}
        if command.tidies:
            self._ports.store.tidy(command.task, command.life, named)
        self._holds[command.task] = command
        self._drop_sealed(command.task, command.life, named)
        for path, transfer in list(self._transfers.items()):
            if transfer.ref.task == command.task and path not in named:
                self._end(transfer)
        looked_for = {ref.path for refs in self._looking.values() for ref in refs}
        doubtful = tuple(
            ref
            for ref in command.layers
            if (ref.path not in self._here or command.asks)
            and (ref.path not in self._transfers or not command.sources)
            and ref.path not in looked_for
        )
        if doubtful:
            self._look(doubtful)
        for transfer in self._transfers.values():
            if transfer.ref.task == command.task and transfer.connection is None:
                transfer.due_s = 0.0  # there may be a new source
        self._give_up_in_vain(command.task)

    def _look(self, refs: tuple[LayerRef, ...]) -> int:
        ticket = next(self._tickets)
        self._looking[ticket] = refs
        self._ports.store.look(ticket, refs)
        return ticket

    def looked(self, event: Looked) -> None:
        """Tell the coordinator which layers are here already, and fetch the others."""
        refs, found = self._looking.pop(event.ticket), list[LayerRef]()
        for ref in refs:
            if ref.path in event.found:
                if self._is_named(ref):
                    found.append(ref)
                    self._here[ref.path] = ref
                    if (transfer := self._transfers.get(ref.path)) is not None:
                        self._end(transfer)
                continue
            if self._here.pop(ref.path, None) is not None or ref.level == LOCAL:
                self._send(Lacks(ref.task, (ref.path,)))
            if self._is_named(ref) and ref.path not in self._transfers:
                self._transfers[ref.path] = _Transfer(ref)
        if (failed := self._failed.pop(event.ticket, None)) is not None:
            error, wanted = failed
            if {ref.path for ref in refs} <= set(event.found):
                self._fetch_failed(error)  # all is there: the error has another cause
            else:
                self._waiting[error.ticket] = wanted
                self._give_up_in_vain(refs[0].task)
        self._tell(found)

    def _doubt(self, refs: Sequence[LayerRef]) -> None:
        """Look whether these layers are still here. Those on our disk may be unknown to us: others
        ask us for them because the coordinator knows that it is our disk."""
        doubtful = tuple(r for r in refs if r.path in self._here or r.level == LOCAL)
        if doubtful:
            self._look(doubtful)

    def _is_named(self, ref: LayerRef) -> bool:
        hold = self._holds.get(ref.task)
        return hold is not None and ref in hold.layers

    def _tell(self, refs: Sequence[LayerRef]) -> None:
        for task in dict.fromkeys(ref.task for ref in refs):
            self._send(Held(task, tuple(ref for ref in refs if ref.task == task)))
        self._fetch_waiting()

    def stored(self, ref: LayerRef, *, is_over: bool) -> None:
        """A task has sealed a layer here; ``is_over``: that life is over."""
        if ref.level == STORE:
            return
        hold = self._holds.get(ref.task)
        if is_over or (hold is not None and ref.incarnation < hold.life):
            self._ports.store.drop([ref])
        else:
            self._here[ref.path] = self._sealed[ref.path] = ref

    def _drop_sealed(self, task: int, life: Incarnation, named: set[str]) -> None:
        void = [
            ref
            for ref in self._sealed.values()
            if ref.task == task and ref.incarnation < life and ref.path not in named
        ]
        self._forget(void)

    def discard(self, command: Discard) -> None:
        """Delete these layers: they are as safe elsewhere, or nobody needs them."""
        gone, left = {ref.path for ref in command.layers}, set[str]()
        for transfer in [t for path, t in self._transfers.items() if path in gone]:
            self._end(transfer)
        if (hold := self._holds.get(command.task)) is not None:
            layers = tuple(ref for ref in hold.layers if ref.path not in gone)
            left = {ref.path for ref in layers}
            self._holds[command.task] = replace(hold, layers=layers)
        self._forget(command.layers)
        self._drop_sealed(command.task, command.life, left)

    def _forget(self, refs: Sequence[LayerRef]) -> None:
        for ref in refs:
            self._here.pop(ref.path, None)
            self._sealed.pop(ref.path, None)
        if refs:
            self._ports.store.drop(refs)

    # --- who needs them here --------------------------------------------------------------------

    def fetch(self, ticket: int, chain: Sequence[LayerRef], wanted: Sequence[LayerRef]) -> None:
        """Read layers as soon as the whole chain is here. Answered like ``Store.fetch``."""
        self._waiting[ticket] = [r for r in chain if r.level != STORE], wanted
        self._fetch_waiting()
        for task in {ref.task for ref in chain}:
            self._give_up_in_vain(task)  # meanwhile, they may have ceased to count

    def _fetch_waiting(self) -> None:
        for ticket, (chain, wanted) in list(self._waiting.items()):
            if all(ref.path in self._here for ref in chain):
                self._fetching[ticket] = self._waiting.pop(ticket)
                self._ports.store.fetch(ticket, wanted)

    def fetched(self, ticket: int) -> None:
        """The layers of a request were read."""
        self._fetching.pop(ticket, None)

    def fetch_failed(self, event: FetchFailed) -> bool:
        """Layers could not be read. Return whether that is tried again: others may have them."""
        chain, wanted = self._fetching.pop(event.ticket, ((), ()))
        doubtful = tuple(ref for ref in wanted if ref.level != STORE)
        if not doubtful or not isinstance(event.error, UnreadableLayer):
            return False
        self._failed[self._look(doubtful)] = event, (chain, wanted)
        return True

    def _give_up_in_vain(self, task: int) -> None:
        """Give up requests that wait for layers that no longer count."""
        for ticket, (chain, _) in list(self._waiting.items()):
            for ref in chain:
                if ref.task == task and ref.path not in self._here and not self._is_named(ref):
                    del self._waiting[ticket]
                    error = PeerUnreachable(f"{ref.path} does not count any more")
                    self._fetch_failed(FetchFailed(ticket, error))
                    break

    # --- what comes from others -----------------------------------------------------------------

    def tick(self) -> None:
        """Ask the next source if one does not answer."""
        now = self._ports.clock.ticks_s()
        for transfer in list(self._transfers.values()):
            if not transfer.is_kept and now >= transfer.due_s:
                self._ask_next(transfer, now)

    @property
    def wait_s(self) -> float | None:
        """How long until there is something to do, if nothing comes."""
        due = [t.due_s for t in self._transfers.values() if not t.is_kept and t.due_s < inf]
        return max(0.0, min(due) - self._ports.clock.ticks_s()) if due else None

    def _ask_next(self, transfer: _Transfer, now: float) -> None:
        self._hang_up(transfer)
        sources = self._holds[transfer.ref.task].sources
        transfer.parts.clear()
        if not sources:
            transfer.due_s = inf  # until others are named
            return
        address = sources[transfer.turn % len(sources)]
        transfer.turn += 1
        transfer.connection = self._ports.network.connect(address, SHELF, NOBODY, NOBODY)
        transfer.due_s = now + ANSWER_S

    def _want(self, transfer: _Transfer) -> None:
        assert transfer.connection is not None
        start = sum(map(len, transfer.parts))
        transfer.connection.send(LayerWanted(transfer.ref, start))
        transfer.due_s = self._ports.clock.ticks_s() + ANSWER_S

    def _hang_up(self, transfer: _Transfer) -> None:
        if transfer.connection is not None:
            transfer.connection.close()
            transfer.connection = None

    def _end(self, transfer: _Transfer) -> None:
        self._hang_up(transfer)
        self._transfers.pop(transfer.ref.path, None)

    def _came(self, transfer: _Transfer, part: LayerPart) -> None:
        start = sum(map(len, transfer.parts))
        if part.path != transfer.ref.path or part.start != start or part.nbytes < 0:
            self._fail(transfer)
            return
        transfer.parts.append(part.content)
        if start + len(part.content) < part.nbytes and part.content:
            self._want(transfer)
            return
        self._hang_up(transfer)
        transfer.is_kept = True
        ticket = next(self._tickets)
        self._keeping[ticket] = transfer.ref
        self._ports.store.keep(ticket, transfer.ref, b"".join(transfer.parts))
        transfer.parts.clear()

    def _fail(self, transfer: _Transfer) -> None:
        """A source did not have the layer: ask the next one at once, or the first one later."""
        self._hang_up(transfer)
        now, sources = self._ports.clock.ticks_s(), self._holds[transfer.ref.task].sources
        is_last = not sources or transfer.turn % len(sources) == 0
        transfer.due_s = now + AGAIN_S if is_last else now

    def kept(self, event: Kept) -> None:
        """A fetched layer was written, or was not the right one."""
        ref = self._keeping.pop(event.ticket)
        transfer = self._transfers.get(ref.path)
        if event.error is not None:
            if transfer is not None and transfer.is_kept:
                transfer.is_kept = False
                self._fail(transfer)
        elif not self._is_named(ref):
            self._came_late(ref)
        else:  # even if it has begun to be fetched again meanwhile
            if transfer is not None:
                self._end(transfer)
            self._here[ref.path] = ref
            self._tell([ref])

    def _came_late(self, ref: LayerRef) -> None:
        """Nobody waits any more for what was written. But another slot may have it on the same
        disk, so only the coordinator knows whether it is to be deleted."""
        if ref.level == LOCAL:
            self._here[ref.path] = ref
            self._tell([ref])
        else:
            self._ports.store.drop([ref])

    # --- connections ----------------------------------------------------------------------------

    def opened(self, event: ChannelOpened) -> None:
        """Another slot wants layers."""
        self._guests[event.conn_id] = event.incoming
        event.incoming.send(LayersHere())

    def closed(self, event: ChannelClosed) -> None:
        """A connection is over."""
        self._guests.pop(event.conn_id, None)
        for transfer in self._transfers.values():
            if transfer.connection is not None and transfer.connection.conn_id == event.conn_id:
                transfer.connection = None
                self._fail(transfer)

    def heard(self, conn: int, message: object) -> bool:
        """Take a message that is ours."""
        if isinstance(message, LayerWanted):
            if conn in self._guests:
                ticket = next(self._tickets)
                self._reading[ticket] = conn, message.ref
                self._ports.store.read(ticket, message.ref, message.start)
            return True
        if not isinstance(message, LayersHere | LayerPart):
            return False
        for transfer in list(self._transfers.values()):
            if transfer.connection is not None and transfer.connection.conn_id == conn:
                if isinstance(message, LayerPart):
                    self._came(transfer, message)
                else:
                    self._want(transfer)
        return True

    def read(self, event: PartRead) -> None:
        """Send a part that another slot has asked for."""
        conn, ref = self._reading.pop(event.ticket)
        if (guest := self._guests.get(conn)) is not None:
            guest.send(event.part)
        if event.part.nbytes < 0:
            self._doubt([ref])

    # --- merging --------------------------------------------------------------------------------

    def merge(self, command: MergeLayers) -> None:
        """Merge layers into one."""
        ticket = next(self._tickets)
        self._merging[ticket] = command
        self._ports.store.merge(ticket, command)

    def merged(self, event: MergedHere) -> MergeLayers:
        """A merge is done, or has failed. Returns the command for it."""
        command, merged = self._merging.pop(event.ticket), event.merged
        if merged is not None and merged.level != STORE:
            self._here[merged.path] = merged
        elif merged is None:
            self._doubt(command.layers)
        self._send(LayersMerged(command.task, command.layers, merged))
        return command
