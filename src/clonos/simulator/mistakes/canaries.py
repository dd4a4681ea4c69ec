"""Deliberate mistakes in canaries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clonos.branch import live_log, tally
from clonos.branch.follow import Follower
from clonos.simulator.mistakes.mutation import CANARY, Mutation, mutation
from clonos.simulator.mistakes.protocol import constant
from clonos.simulator.runs import canaries
from clonos.storage.layers import LayerStore


def of_another_step(original: Any) -> Any:
    """The canary takes each step with the determinants of the step before."""

    def take(self: Any, done: Any) -> None:
        notes = self.__dict__.setdefault("notes", {})
        before, notes[done.task] = notes.get(done.task, done.note), done.note
        original(self, done._replace(note=before))

    return take


def without_some(original: Any) -> Any:
    """The canary does not see what the job delivered in some steps."""

    def take(self: Any, done: Any) -> None:
        original(self, done._replace(outputs=()) if done.position % 10 == 0 else done)

    return take


def leaves_a_file(original: Any) -> Any:
    def more(self: Any, heard: Any) -> Any:
        files = self._cluster.disks.shared.observe()
        LayerStore(self._cluster.driver.layers, files=files).put("history/seen", b"")
        return original(self, heard)

    return more


def as_after_a_restart(original: Any) -> Any:
    """Lives that still run are taken to be over."""

    def without_log(past: Any) -> Any:
        found = original(past)
        lives = {
            task: replace(life, fences=past.activations[task].fences)
            for task, life in found.activations.items()
        }
        return replace(found, activations=lives)

    return without_log


def up_to_the_end(original: Any) -> Any:
    """The canary also follows entries that may yet be cut."""

    def part_of(run: Any, after: int, until: int) -> Any:
        del until
        return original(run, after, run.end)

    return part_of


WRONG_CANARIES: dict[str, Mutation] = {
    "a canary takes other steps than the job": mutation(
        "canary", (Follower, "_take", of_another_step), kind=CANARY
    ),
    "a canary misses what some steps deliver": mutation(
        "canary", (Follower, "_take", without_some), kind=CANARY
    ),
    "a canary takes rows of one key for equal": mutation(
        "canary", (tally, "differ", constant(value=False)), kind=CANARY
    ),
    "a canary leaves a file": mutation(
        "canary", (canaries.LogOfJob, "more", leaves_a_file), kind=CANARY
    ),
    "a canary takes nothing that was made after it began": mutation(
        "canary", (canaries, "without_log", as_after_a_restart), kind=CANARY
    ),
    "a canary follows what may yet be cut": mutation(
        "canary", (live_log, "part_of", up_to_the_end), kind=CANARY
    ),
}
