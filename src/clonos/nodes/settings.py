"""The settings of a driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clonos import errors
from clonos.core.holdings import LOST_MS
from clonos.core.inflight import INFLIGHT_BYTES
from clonos.core.log import LOG_BYTES
from clonos.core.reach import GATHER_MS
from clonos.core.recovery import PATIENCE_MS
from clonos.nodes import commits
from clonos.nodes.layers import GARBAGE_S
from clonos.nodes.places import PACE, Pace
from clonos.nodes.tenure import ECHO_S
from clonos.nodes.views import Datasets


@dataclass(frozen=True)
class DriverSettings:
    """A driver's settings for its job.

    Attributes
    ----------
    address
        The address of the house-keeper.
    places
        One entry per slot that the job wants: the only task it can run, or None for any.
    versions
        The versions that slots must run on.
    silence_s
        A slot that is silent for this long is given up although its connection stands; after a
        fifth of this if a recovery awaits its answer. See :class:`~clonos.nodes.pulses.Pulses`.
    answer_s
        How long a recovery waits for a slot that is alive, for example one that restores its state.
    gather_s
        How long complaints of slots that cannot reach each other are gathered.
    echo_s
        How long the driver may go on without having looked for a later term.
    grace_s
        How long an unreferenced layer stays.
    inflight_bytes
        How many bytes of items a slot may keep in memory; at twice as much, sources wait.
    log_bytes
        How many bytes of logs a slot may hold; at half of it a floor is hurried, beyond it sources
        wait.
    speculation
        Whether a task that falls far behind its peers is overtaken by a standby.
    lost_s
        How long to wait for a machine that is away and whose disk has the only copy of a layer.
    datasets
        Sources and sinks, for listeners.
    delivered
        Rows delivered before, by sink: those of the driver whose job this one goes on with.
    interruptions
        Errors that are no fault of the job: when it ends with one, its journal is put in order.
    """

    name: str
    run_id: str
    address: str
    places: tuple[int | None, ...]
    operators: Mapping[int, Sequence[str]]
    application_id: str = ""
    datasets: Datasets = field(default_factory=Datasets)
    term: int | None = None
    checkpoint_interval_s: float = 1.0
    standbys: int = 1
    availability: bool = False
    silence_s: float = 1.5
    answer_s: float = PATIENCE_MS / 1000
    gather_s: float = GATHER_MS / 1000
    progress_s: float = 1.0
    versions: Mapping[str, str] = field(default_factory=dict)
    delivered: Mapping[str, int] = field(default_factory=dict)
    interruptions: tuple[type[errors.ClonosError], ...] = ()
    echo_s: float = ECHO_S
    rotate_bytes: int = commits.ROTATE_BYTES
    grace_s: float = GARBAGE_S
    pace: Pace = PACE
    inflight_bytes: int = INFLIGHT_BYTES
    log_bytes: int = LOG_BYTES
    speculation: bool = False
    lost_s: float = LOST_MS / 1000
