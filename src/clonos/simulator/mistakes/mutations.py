"""Deliberate mistakes in the protocol: a simulator that does not find them proves nothing.

Each mutation replaces some functions of the core (or of the simulated runtime) by wrong ones, made
in the other modules of this folder. The names say what is done wrong; :data:`MUTATIONS` says which
invariant each breaks, and only that one counts. ``clonos sim --mutations`` prints how often each is
found, and writes the seeds that the tests run.
"""

from __future__ import annotations

from clonos.cluster.durable import DeliveredOutputs
from clonos.cluster.lookout import Lookout
from clonos.core import checkpoints as checkpoints_module
from clonos.core import fences as fences_module
from clonos.core import history as history_module
from clonos.core import recovery as recovery_module
from clonos.core import seals as seals_module
from clonos.core import task as task_module
from clonos.core.blame import Blame
from clonos.core.calls import OpenCalls
from clonos.core.channels import Inbound, Outbound
from clonos.core.checkpoints import Checkpoints
from clonos.core.coordinator import Coordinator
from clonos.core.events import Trial
from clonos.core.fences import Fences
from clonos.core.history import History
from clonos.core.housekeeper import HouseKeeper
from clonos.core.inbounds import Inbounds
from clonos.core.inflight import InFlightLog
from clonos.core.intake import Intake
from clonos.core.log import Log, LogBook
from clonos.core.markers import Markers
from clonos.core.messages import Restored
from clonos.core.moves import Moves
from clonos.core.outbounds import Outbounds
from clonos.core.placement import Slot
from clonos.core.plan import Plan
from clonos.core.recovery import Recoveries
from clonos.core.rest import Rest
from clonos.core.roster import Roster
from clonos.core.seals import Seals
from clonos.core.step import RunningStep, TaskTime
from clonos.core.task import TaskMachine
from clonos.core.throttle import Throttle
from clonos.core.watch import Rehearsal, Watch
from clonos.nodes import driver as driver_module
from clonos.nodes.commits import Commits
from clonos.nodes.history import HistoryCare
from clonos.nodes.layers import LayerCare
from clonos.nodes.places import Places
from clonos.nodes.pulses import Pulses
from clonos.nodes.resident import Resident
from clonos.nodes.slot import SlotNode
from clonos.nodes.tenure import Sight, Tenure, TermSeen
from clonos.nodes.waiting import Waiting as WaitingDriver
from clonos.operators.calls.lanes import Lanes
from clonos.operators.process.asking import CallTable
from clonos.simulator.jobs.programs import Job, Toy
from clonos.simulator.mistakes import (
    asking,
    floors,
    logs,
    moves,
    order,
    past,
    spilling,
    upgrades,
    values,
    wire,
)
from clonos.simulator.mistakes import protocol as wrong
from clonos.simulator.mistakes.canaries import WRONG_CANARIES
from clonos.simulator.mistakes.effects import WRONG_EFFECTS
from clonos.simulator.mistakes.gaps import WRONG_GAPS
from clonos.simulator.mistakes.implied import WRONG_IMPLIED
from clonos.simulator.mistakes.lethal import WRONG_LETHAL
from clonos.simulator.mistakes.levels import WRONG_LEVELS
from clonos.simulator.mistakes.loops import WRONG_LOOPS
from clonos.simulator.mistakes.mutation import (
    ARROW,
    DISK,
    EDGE,
    FORGIVING_EDGE,
    HARSH,
    HISTORY,
    LIVE,
    LOGS,
    LOST_HISTORY,
    MOVES,
    OVERLAP,
    RIVALS,
    SPILL,
    UPGRADE,
    Mutation,
    mutation,
)
from clonos.simulator.mistakes.protocol import constant
from clonos.simulator.mistakes.reach import WRONG_REACH
from clonos.simulator.mistakes.renames import WRONG_RENAMES
from clonos.simulator.mistakes.rewinds import WRONG_REWINDS
from clonos.simulator.world.disk import SimulatedFiles, Tail
from clonos.state.large_pieces import LargePieceStore
from clonos.state.sessions import SessionStore
from clonos.state.stores import KeyedStore
from clonos.state.values import ValueStore
from clonos.storage import journal as journal_module
from clonos.storage.layers import LayerStore
from clonos.upgrade import flow as flow_module
from clonos.upgrade import layers as layers_module
from clonos.upgrade import owners
from clonos.upgrade import switch as switch_module
from clonos.upgrade.flow import Flow
from clonos.upgrade.switch import Switch

MUTATIONS: dict[str, Mutation] = {
    "the delta is not stored": mutation(
        "log before effect", (Inbound, "take", wrong.without_delta)
    ),
    "dependencies are not transitive": mutation(
        "log before effect", (TaskMachine, "_take_items", wrong.direct_dependency_only)
    ),
    "output says of its own task only that it depends on it": mutation(
        "log before effect", (Outbounds, "put_out", wrong.own_log_only)
    ),
    "output is delivered before its log is held": mutation(
        "log before effect", (HouseKeeper, "holds", constant(True))
    ),
    "a gated source does not wait": mutation(
        "log before effect", (Outbounds, "_gate_closed", constant(False))
    ),
    "a sink keeps its log until it has output": mutation(
        "log before effect", (Outbounds, "tick", wrong.keep_the_log)
    ),
    "answers leave before the commit": mutation(
        "log before effect", (Commits, "_write", wrong.answer_before_commit)
    ),
    "output is released before it is acknowledged": mutation(
        "log before effect", (Outbounds, "settle", wrong.release_at_once)
    ),
    "the house-keeper vouches for what only waits there": mutation(
        "log before effect", (Inbound, "forget_queue", constant(None)), kind=EDGE
    ),
    "the first answer counts, not the longest": mutation(
        "log before effect", (Recoveries, "_read_longest", wrong.first_answer), kind=OVERLAP
    ),
    "nobody is awaited": mutation(
        "no orphans", (Recoveries, "_holders", constant(set())), kind=OVERLAP
    ),
    "a log is resolved before its ancestors'": mutation(
        "stable log", (Recoveries, "_resolvable", wrong.resolve_before_ancestors), kind=OVERLAP
    ),
    "a task is activated before its ancestors are resolved": mutation(
        "no orphans", (Recoveries, "_may_live", constant(True)), kind=OVERLAP
    ),
    "who waits for a slot is not judged again": mutation(
        "no orphans", (Recoveries, "_cut_waiting", constant([])), kind=OVERLAP
    ),
    "orphans are left alone": mutation(
        "no orphans", (Recoveries, "_orphans", constant([])), kind=EDGE
    ),
    "a step under way depends on nothing": mutation(
        "no orphans",
        (TaskMachine, "_take_items", wrong.depend_on_nothing),
        (TaskMachine, "end", wrong.depend_at_the_end),
        kind=EDGE,
    ),
    "an end ignores its fence": mutation(
        "fencing", (TaskMachine, "end", wrong.end_although_fenced), kind=EDGE
    ),
    "what a replay will depend on is not told": mutation(
        "no orphans", (task_module, "dependencies_of", constant({})), kind=EDGE
    ),
    "logs are not cut to what is consistent": mutation(
        "no orphans", (recovery_module, "consistent_cut", wrong.lengths_only), kind=EDGE
    ),
    "received orphans are kept": mutation(
        "no orphans", (Inbound, "drop_orphans", constant(False)), kind=EDGE
    ),
    "lost entries are kept": mutation("no orphans", (LogBook, "cut", constant(None)), kind=EDGE),
    "what may yet be lost is taken": mutation(
        "no orphans", (Fences, "judge", wrong.never_unknown), kind=EDGE
    ),
    "acknowledgements outlive their task": mutation(
        "fencing", (Checkpoints, "forget", constant(None))
    ),
    "cuts are forgotten at the floor": mutation(
        "no orphans",
        (fences_module, "still_needed", wrong.need_none),
        kind=EDGE,
    ),
    "what is merely held is said to be stable": mutation(
        "stable log", (HouseKeeper, "_rests_on_stable", constant(True)), kind=EDGE
    ),
    "who replays a log counts as its writer": mutation(
        "stable log", (Resident, "_make", wrong.as_if_we_had_written_it)
    ),
    "digests are not compared": mutation(
        "stable output",
        (InFlightLog, "_verify", wrong.forget_what_is_expected),
        (Toy, "_process", wrong.other_rows_on_replay),
    ),
    "a task is done before its output is written": mutation(
        "written once", (Outbounds, "is_settled", wrong.finish_unwritten)
    ),
    "what an earlier life delivered counts as written": mutation(
        "no early truncation", (Outbound, "greet", wrong.delivered_is_written)
    ),
    "items sent again are taken again": mutation(
        "gap-free FIFO",
        (Inbound, "_enqueue", wrong.enqueue_anything),
        (InFlightLog, "resume", wrong.start_over),
    ),
    "output that waits for its log is forgotten": mutation(
        "gap-free FIFO", (HouseKeeper, "_deliver", wrong.drop_what_waits)
    ),
    "no life is refused": mutation("fencing", (Fences, "refuses", constant(False))),
    "a fence is answered and forgotten": mutation(
        "fencing", (Fences, "announce", wrong.fence_without_effect), kind=HARSH
    ),
    "in-flight items go when the layer is stored": mutation(
        "no early truncation", (Seals, "stored", wrong.truncate_when_stored)
    ),
    "a layer does not wait for delivery": mutation(
        "no early truncation", (Seals, "acknowledge", wrong.acknowledge_unsettled)
    ),
    "logs are truncated past the floor": mutation(
        "no early truncation", (TaskMachine, "_on_floor", wrong.floor_of_next)
    ),
    "the house-keeper truncates logs past the floor": mutation(
        "no early truncation", (HouseKeeper, "advance", wrong.truncate_further)
    ),
    "a checkpoint lacks one layer": mutation(
        "consistent floor", (Markers, "complete", wrong.nearly_complete)
    ),
    "epochs from before and after a reset make a floor": mutation(
        "consistent floor", (Markers, "_newest_epoch", constant(0)), kind=FORGIVING_EDGE
    ),
    "the first marker seals": mutation(
        "consistent floor", (Inbounds, "aligned_epoch", wrong.first_marker_counts)
    ),
    "a floor rests on entries that may be lost": mutation(
        "no orphans", (checkpoints_module, "newest_fitting", floors.whatever_it_rests_on)
    ),
    "a floor has sent what its receiver's has not taken": mutation(
        "fitting floors", (checkpoints_module, "newest_fitting", floors.whatever_receivers_have)
    ),
    "a receiver's layer counts before it is a floor": mutation(
        "fitting floors", (Checkpoints, "acknowledged", floors.needs_of_the_newest)
    ),
    "layers of two generations make floors": mutation(
        "fitting floors",
        (Checkpoints, "_fit", floors.of_any_generation),
        kind=FORGIVING_EDGE,
    ),
    "a task seals while an input starts over": mutation(
        "fitting floors",
        (Seals, "may_seal", floors.while_starting_over),
        kind=FORGIVING_EDGE,
    ),
    "a task says that its standby had all of its state": mutation(
        "restored as told", (Restored, "__init__", floors.all_in_memory)
    ),
    "layers are deleted while somebody reads them": mutation(
        "durable", (Coordinator, "is_restoring", wrong.never_full)
    ),
    "items behind a marker are taken": mutation(
        "consistent floor", (Inbounds, "available", wrong.past_the_marker)
    ),
    "deliveries are not in the journal": mutation(
        "durable", (HouseKeeper, "_write_item", constant(None))
    ),
    "log entries are not in the journal": mutation(
        "durable", (HouseKeeper, "_write_run", constant(None))
    ),
    "cuts are not in the journal": mutation(
        "durable", (HouseKeeper, "_write_resolve", constant(None))
    ),
    "a group is acknowledged before it is synced": mutation(
        "durable", (Tail, "sync", constant(None)), kind=DISK
    ),
    "names are not synced": mutation(
        "durable", (SimulatedFiles, "sync_folder", constant(None)), kind=DISK
    ),
    "layers are not synced": mutation(
        "durable", (LayerStore, "__init__", wrong.for_the_process_only), kind=DISK
    ),
    "a torn group is not cut off": mutation(
        "durable",
        (SimulatedFiles, "truncate", constant(None)),
        (journal_module, "_acknowledged", wrong.with_its_torn_tail),
        kind=DISK,
    ),
    "damage is taken for a torn group": mutation(
        "durable", (journal_module, "_good_frame_after", constant(False)), kind=DISK
    ),
    "the journal is begun anew before its output is in files": mutation(
        "durable", (DeliveredOutputs, "flush", constant(None)), kind=DISK
    ),
    "a layer is deleted while it is referred to": mutation(
        "durable",
        (LayerCare, "merged", wrong.delete_what_is_used),
        (LayerCare, "clean", wrong.whatever_is_used),
        (LayerCare, "act", wrong.whatever_is_used),
        kind=DISK,
    ),
    "the next term is not looked for": mutation(
        "one driver", (Lookout, "see", constant([TermSeen(Sight.OURS)])), kind=DISK
    ),
    "who is superseded lets out what was under way": mutation(
        "one driver", (Tenure, "is_lost", wrong.never_lost), kind=DISK
    ),
    "what came too late for a floor stays": mutation(
        "no litter", (driver_module, "left_behind", constant([])), kind=DISK
    ),
    "a layer goes that a point needs": mutation(
        "kept past",
        (HistoryCare, "unused", past.as_it_is),
        (LayerCare, "clean", wrong.whatever_is_used),
        (LayerCare, "act", wrong.whatever_is_used),
        kind=HISTORY,
    ),
    "a floor does not wait for the log below it": mutation(
        "kept past", (HouseKeeper, "may_pass", constant(True)), kind=HISTORY
    ),
    "what a floor passes is not kept": mutation(
        "kept past", (History, "passed", past.keep_the_first_entry), kind=HISTORY
    ),
    "a segment counts as stored before it is": mutation(
        "kept past", (HistoryCare, "act", past.stored_when_asked), kind=LOST_HISTORY
    ),
    "nobody looks for pins": mutation(
        "kept past", (history_module, "pinned", constant(None)), kind=HISTORY
    ),
    "what was seen of pins a while ago counts": mutation(
        "kept past", (HistoryCare, "surveyed", past.look_first), kind=HISTORY
    ),
    "segments of points that are gone are still known": mutation(
        "sound state", (History, "_take_gone", wrong.unchanged("segments")), kind=HISTORY
    ),
    "user code does something else on replay": mutation(
        "divergence", (Toy, "_process", wrong.other_rows_on_replay)
    ),
    "a source is cut elsewhere on replay": mutation(
        "divergence", (task_module, "cuts_to_read", wrong.cut_elsewhere)
    ),
    "merging keeps the newest layer only": mutation(
        "as sealed", (Job, "merge", wrong.newest_layer)
    ),
    "END is not made again on replay": mutation(
        "equivalence", (Outbounds, "put_out", wrong.without_end_on_replay)
    ),
    "the clock is read on replay": mutation(
        "equivalence", (RunningStep, "clock_ms", wrong.live_clock)
    ),
    "the clock is not logged": mutation(
        "equivalence", (task_module, "encode_record", wrong.unlogged_clock)
    ),
    "a timer's time is not logged": mutation(
        "equivalence", (TaskMachine, "_begin", wrong.timer_of_now)
    ),
    "who starts over misses what was made meanwhile": mutation(
        "conservation", (InFlightLog, "made_until", wrong.continue_at_the_end), kind=FORGIVING_EDGE
    ),
    "calls are made again on replay": mutation("calls", (RunningStep, "call", wrong.call_again)),
    "what has asked is asked again on replay": mutation(
        "calls", (TaskMachine, "_take_calls", wrong.ask_on_replay)
    ),
    "answers come in another order on replay": mutation(
        "equivalence", (task_module, "work_of", wrong.reversed_on_replay)
    ),
    "answers are shared at the next tick": mutation(
        "log before effect", (Outbounds, "share_soon", constant(None))
    ),
    "END does not wait for calls": mutation(
        "conservation", (TaskMachine, "_has_ended", wrong.end_with_calls_open)
    ),
    "calls that were open are forgotten": mutation(
        "equivalence", (Toy, "open_calls", constant({}))
    ),
    "who has effects is not told what is safe": mutation(
        "liveness", (HouseKeeper, "_tell_what_is_safe", constant(None)), kind=EDGE
    ),
    "a full task takes more": mutation(
        "bounded memory", (TaskMachine, "_is_full", wrong.never_full)
    ),
    "the machine's clock counts, wherever it is set": mutation(
        "monotonic clock", (TaskTime, "now_ms", wrong.wall_clock)
    ),
    "backlog is not bounded": mutation("bounded memory", (Outbounds, "blocked", constant(False))),
    "nobody says that it replays or aligns": mutation(
        "open flow", (Inbound, "credit", wrong.never_relaxed)
    ),
    "any slot runs any task": mutation("placement", (Slot, "serves", constant(True))),
    "nobody is watched after a death": mutation("poison", (Blame, "next_life", wrong.look_away)),
    "who has died in a trial is forgiven": mutation(
        "poison", (Watch, "_try", constant((True, ())))
    ),
    "suspect rows are guilty": mutation("blame", (Rehearsal, "attempt", constant(Trial.DIED))),
    "a call of a watched life is guilty": mutation("blame", (Watch, "_killed", constant(1))),
    "nobody asks which of the rows it was": mutation(
        "blame", (Rehearsal, "narrow_down", wrong.hasty_verdict)
    ),
    "no log says what was left out": mutation(
        "equivalence", (RunningStep, "leave_out", wrong.leave_out_silently)
    ),
    "each task of a cell looks for a slot": mutation("placement", (Roster, "home", constant(None))),
    "a hop inside a cell counts": mutation(
        "log before effect", (Plan, "distances", wrong.every_hop_counts)
    ),
    "one task of a slot answers for the others": mutation(
        "fencing", (SlotNode, "_on_to_task", wrong.answer_for_each_other)
    ),
    "of a lost cell the first task recovers": mutation(
        "liveness", (Coordinator, "_on_slot_lost", wrong.recover_the_first)
    ),
    "log entries below the floor still count as kept": mutation(
        "sound state", (Log, "truncate", wrong.unchanged("nbytes"))
    ),
    "items below the floor still count as kept": mutation(
        "sound state", (InFlightLog, "truncate", wrong.unchanged("nbytes"))
    ),
    "a stream that has closed is still listened to": mutation(
        "sound state", (Inbound, "close", wrong.unchanged("conn"))
    ),
    "who is away counts as slow": mutation(
        "sound state", (Outbound, "_down", wrong.unchanged("relaxed"))
    ),
    "a resolved fence stays pending": mutation(
        "sound state", (Fences, "resolve", wrong.unchanged("_pending"))
    ),
    "what was replayed counts as still to come": mutation(
        "sound state", (TaskMachine, "_if_replayed", wrong.unchanged("_future"))
    ),
    "nobody looks whether new log entries are stable": mutation(
        "sound state", (HouseKeeper, "_journal_new", wrong.unchanged("_unstable"))
    ),
    "a life that is over has acknowledged a layer": mutation(
        "sound state", (Checkpoints, "forget", constant(None))
    ),
    "the tasks of a lost slot stay where they were": mutation(
        "sound state", (Coordinator, "_on_slot_lost", wrong.only_the_slot_goes)
    ),
    "a group that was let out is still to be written": mutation(
        "sound state", (Commits, "committed", wrong.unchanged("_group"))
    ),
    "an outcome that was taken still waits": mutation(
        "sound state", (OpenCalls, "take", wrong.unchanged("came"))
    ),
    "a lost slot is still heard": mutation("sound state", (Pulses, "ended", constant(None))),
    "a lost slot keeps its place": mutation(
        "sound state", (Places, "lost", wrong.only_the_seat_goes)
    ),
    "a gated source waits for what it is about to send": mutation(
        "liveness", (Outbounds, "_gate_closed", wrong.wait_for_the_journal)
    ),
    "a receiver's move is not heard": mutation(
        "liveness", (Outbounds, "connect", wrong.deaf_while_away)
    ),
    "a lost marker is not injected again": mutation(
        "liveness", (Coordinator, "_on_live", wrong.live_without_inject)
    ),
    "the clock stands still when it was set back": mutation(
        "liveness", (TaskTime, "now_ms", wrong.standing_clock)
    ),
    "the job is done with its first sink": mutation(
        "liveness", (Coordinator, "_on_finished", wrong.done_with_the_first)
    ),
    "sources that wait are forgotten": mutation(
        "liveness", (Intake, "throttle", wrong.never_opened)
    ),
    "what a local disk says is believed": mutation(
        "equivalence", (InFlightLog, "read_back", spilling.believed), kind=SPILL
    ),
    "a spilled file goes when its items are processed": mutation(
        "no early truncation", (Outbounds, "truncate", spilling.until_taken), kind=SPILL
    ),
    "nobody hears that a local disk has rotted": mutation(
        "liveness", (Recoveries, "unreadable", constant(None)), kind=SPILL
    ),
    "sources go on however long logs are": mutation(
        "bounded memory", (Throttle, "_fullness", logs.never_too_much), kind=LOGS
    ),
    "no checkpoint is hurried": mutation(
        "liveness", (Throttle, "wants_floor", logs.never_hurried), kind=LOGS
    ),
    "every new task takes over all key groups": mutation(
        "kept state", (layers_module, "owned", upgrades.every_group), kind=UPGRADE
    ),
    "timers are lost when tasks become others": mutation(
        "kept state", (owners._Owner, "add", upgrades.values_alone), kind=UPGRADE
    ),
    "a new task goes on with the one of its number": mutation(
        "conservation", (Flow, "predecessor", upgrades.by_index_alone), kind=UPGRADE
    ),
    "of former tasks the fastest tells the time": mutation(
        "conservation", (flow_module, "slowest", upgrades.fastest), kind=UPGRADE
    ),
    "outputs get the names of an earlier plan's": mutation(
        "stable output",
        (switch_module, "Sealed", upgrades.same_generation),
        (HouseKeeper, "succeed", upgrades.in_the_same_generation),
        (layers_module.Redistribution, "_out", upgrades.numbers_begin_anew),
        kind=UPGRADE,
    ),
    "a plan counts before its layers are stored": mutation(
        "one plan", (Switch, "make", upgrades.stored_afterwards), kind=UPGRADE
    ),
    "nobody knows that an input has ended": mutation(
        "liveness", (Flow, "has_ended", constant(False)), kind=UPGRADE
    ),
    "who does not settle goes on without its sources": mutation(
        "liveness", (Checkpoints, "go_on", constant(None)), kind=LIVE
    ),
    "a job has settled as far as its driver knows": mutation(
        "settled steps", (Rest, "is_below_floors", upgrades.all_are_answered), kind=UPGRADE
    ),
    "a job has settled though calls are open": mutation(
        "settled calls",
        (Checkpoints, "no_call_is_open", upgrades.all_are_answered),
        kind=LIVE,
    ),
    "slots that leave while they wait are counted on": mutation(
        "sound state", (WaitingDriver, "_on_control_lost", upgrades.counted_on), kind=LIVE
    ),
    "a task says that it rests while its calls are open": mutation(
        "planned moves", (Resident, "_tell_if_yielded", moves.rest_at_once), kind=MOVES
    ),
    "who has said that it rests goes on": mutation(
        "planned moves", (Resident, "_steps", moves.never_rest), kind=MOVES
    ),
    "who cannot move rests for ever": mutation(
        "liveness", (Moves, "_give_up", moves.without_resume), kind=MOVES
    ),
    "each task of a cell moves by itself": mutation(
        "placement", (Recoveries, "_inherit", moves.one_by_one), kind=MOVES
    ),
    "items that receivers may ask for are not handed over": mutation(
        "no early truncation", (seals_module, "at_rest", moves.without_items), kind=MOVES
    ),
    "the fence of a life that hands over is not answered": mutation(
        "fencing", (Recoveries, "_begin", moves.without_answers), kind=MOVES
    ),
    "what was handed over is not stored": mutation(
        "as sealed", (Seals, "take_over", moves.as_if_stored), kind=MOVES
    ),
    "who is overtaken goes on where it was slow": mutation(
        "rivals", (Recoveries, "hand_over", moves.without_heir), kind=RIVALS
    ),
    "who is overtaken is not fenced": mutation(
        "no orphans", (Recoveries, "_tell_all", moves.without_fences), kind=RIVALS
    ),
    "rows of a key overtake each other": mutation(
        "order per key", (Lanes, "unblocked", order.overtake), kind=ARROW
    ),
    "a key has any number of calls open": mutation(
        "order per key", (Lanes, "next", order.any_number), kind=ARROW
    ),
    "layers do not say which rows are held": mutation(
        "order per key", (KeyedStore, "put", order.forget_held), kind=ARROW
    ),
    "a question goes to the service that was declared first": mutation(
        "calls", (CallTable, "_request", asking.first_declared), kind=ARROW
    ),
    "services are looked at until one is due": mutation(
        "divergence", (CallTable, "_ready", asking.until_one_is_due), kind=ARROW
    ),
    "layers do not say which questions are asked together": mutation(
        "equivalence", (KeyedStore, "put", order.forget_together), kind=ARROW
    ),
    "an older level hides what newer ones say of a key": mutation(
        "equivalence", (ValueStore, "_look_up", values.oldest_first), kind=ARROW
    ),
    "windows fire without what is on the disk": mutation(
        "equivalence", (LargePieceStore, "_between", values.nothing_there), kind=ARROW
    ),
    "rows do not join sessions that are on the disk": mutation(
        "equivalence", (SessionStore, "_touched", values.gone_for_good), kind=ARROW
    ),
    "sessions on the disk are not seen to be over": mutation(
        "equivalence", (SessionStore, "earliest", values.those_here_are_all), kind=ARROW
    ),
    **wire.MUTATIONS,
    **WRONG_CANARIES,
    **WRONG_EFFECTS,
    **WRONG_GAPS,
    **WRONG_IMPLIED,
    **WRONG_LETHAL,
    **WRONG_LEVELS,
    **WRONG_LOOPS,
    **WRONG_REACH,
    **WRONG_RENAMES,
    **WRONG_REWINDS,
}
