"""Deliberate mistakes in the transport."""

from __future__ import annotations

from itertools import islice
from typing import Any

from clonos.simulator.mistakes.mutation import WIRE, Mutation, mutation
from clonos.transport.frames import Frame, FrameReader
from clonos.transport.plane import Plane
from clonos.transport.secret import Greeting, JobSecret
from clonos.transport.streams import BUFFERS_MAX, Incoming, Stream, Thing


class Anything(set[bytes]):
    """A set that forgets everything put into it."""

    def add(self, _: bytes) -> None:
        pass


def same_greeting_again(original: Any) -> Any:
    def admit(self: Plane, incoming: Incoming, sealed: bytes) -> list[Thing]:
        self._nonces = Anything()
        result: list[Thing] = original(self, incoming, sealed)
        return result

    return admit


def greeting_for_anybody(original: Any) -> Any:
    def admit(self: Plane, incoming: Incoming, sealed: bytes) -> list[Thing]:
        def open_(secret: JobSecret, sealed: bytes) -> Greeting:
            greeting = known(secret, sealed)
            object.__setattr__(greeting, "audience", self.address)
            return greeting

        known = JobSecret.open
        setattr(JobSecret, "open", open_)  # noqa: B010 - it is a method
        try:
            result: list[Thing] = original(self, incoming, sealed)
        finally:
            setattr(JobSecret, "open", known)  # noqa: B010
        return result

    return admit


def not_taken_is_lost(original: Any) -> Any:
    def flush(self: Stream) -> None:
        before = [bytes(piece) for piece in islice(self._out, BUFFERS_MAX)]
        original(self)
        if self._out and bytes(self._out[0]) not in before:  # it was taken in part
            self._append(b"")
            self._unsent_bytes -= len(self._out.popleft())

    return flush


def heard_twice(original: Any) -> Any:
    def cut(self: FrameReader, came: bytes) -> list[Frame]:
        frames: list[Frame] = original(self, came)
        return [*frames, frames[-1]] if len(frames) > 1 else frames

    return cut


MUTATIONS: dict[str, Mutation] = {
    "a message is heard twice": mutation(
        "faithful wire", (FrameReader, "_cut", heard_twice), kind=WIRE
    ),
    "what the system does not take is lost": mutation(
        "faithful wire", (Stream, "flush", not_taken_is_lost), kind=WIRE
    ),
    "a greeting opens as often as it is said": mutation(
        "no strangers", (Plane, "_admit", same_greeting_again), kind=WIRE
    ),
    "a greeting opens everywhere": mutation(
        "no strangers", (Plane, "_admit", greeting_for_anybody), kind=WIRE
    ),
}
