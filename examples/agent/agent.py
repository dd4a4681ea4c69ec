"""An agent that decides about refunds: all that one writes.

A conversation is a key. The model is asked what to do with what was said so far, a tool does it,
and the model is asked again, until it says goodbye. Large refunds need a human's approval, which
comes as a row of a second stream, or does not come in time.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterable
from typing import Any, Final

import clonos

CENTS_PER_TOKEN: Final = 0.002
BUDGET: Final = clonos.Budget(calls=100_000, cost=10_000.0)
LARGE_CENTS: Final = 5_000
"""A refund of more needs a human."""
MESSAGES_MAX: Final = 40
ROWS: Final = "id long, request long, text string"
"""A customer's question (without `request`), or what a human says of the model's request."""
TALKS: Final = "id long, talk string"


class Shop:
    """A client of the model, the tools, the desk where humans sit, and the bank."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: dict[str, Any], key: str = "") -> dict[str, Any]:
        """One request."""
        with self._ask(path, body, key) as response:
            answer: dict[str, Any] = json.load(response)
            return answer

    def _ask(self, path: str, body: dict[str, Any], key: str = "") -> Any:
        """The headers say which process asks, and for which effect."""
        headers = {"Agent": str(os.getpid()), "Idempotency-Key": key}
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)  # noqa: S310 - ours
        return urllib.request.urlopen(request, timeout=20)  # noqa: S310 - ours

    def think(self, talk_id: int, talk: list[dict[str, Any]]) -> dict[str, Any]:
        """What should be done next? The model never says the same twice, and it says it in pieces:
        words, which one might show, and at last the whole of it."""
        with self._ask("/model", {"id": talk_id, "talk": talk}) as stream:
            for line in stream:
                piece = json.loads(line.removeprefix(b"data: ") if line.strip() else b"{}")
                if "act" in piece:
                    thought: dict[str, Any] = piece
                    return thought
        raise ConnectionError("the model has stopped in the middle")  # it is asked again

    def look_up(self, what: str, talk_id: int, request: int) -> dict[str, Any]:
        """A tool that only reads: the order, or the policy."""
        return self.post(f"/{what}", {"id": talk_id, "request": request})

    def ask_human(
        self, talk_id: int, request: int, cents: int, *, call: clonos.EffectCall
    ) -> dict[str, Any]:
        """Somebody at the desk is told; the decision comes as a row."""
        return self.post("/desk", {"id": talk_id, "request": request, "cents": cents}, call.key)

    def refund(
        self, talk_id: int, request: int, cents: int, *, call: clonos.EffectCall
    ) -> dict[str, Any]:
        """Money goes."""
        return self.post("/refund", {"id": talk_id, "request": request, "cents": cents}, call.key)


class RefundAgent(clonos.Process):
    """One conversation per key."""

    def __init__(self, shop: Shop, patience_ms: int) -> None:
        self.shop, self.patience_ms = shop, patience_ms

    def open(self, ctx: clonos.ProcessContext) -> None:
        shop = self.shop
        self.talk = ctx.state("talk")  # messages: who said what
        self.wish = ctx.state("wish")  # the refund that waits for a human, and until when
        self.model = ctx.service("model", shop.think, cost=price, budget=BUDGET, attempts=3)
        self.tool = ctx.service("tool", shop.look_up, attempts=3)
        ask_human = clonos.effect(shop.ask_human, idempotent=True)
        refund = clonos.effect(shop.refund, idempotent=True)
        self.human = ctx.service("human", ask_human, attempts=5)
        self.bank = ctx.service("bank", refund, attempts=5)

    def on_row(self, row: Any, ctx: clonos.ProcessContext) -> Iterable[Any] | None:
        if row.request is None:
            return self.say(ctx, {"who": "customer", "text": row.text})
        wish = self.wish.get()
        if wish is None or wish["request"] != row.request:
            return None  # it comes too late
        self.wish.clear()
        ctx.timers.delete(wish["until"])
        message = {"who": "human", "text": row.text}
        if row.text != "approved":
            return self.say(ctx, message)
        self.talk.set([*self.talk.get(), message])
        self.bank.ask(ctx.key, wish["request"], wish["cents"], then="on_paid")
        return None

    def on_timer(self, key: int, due: int, ctx: clonos.ProcessContext) -> Iterable[Any] | None:
        self.wish.clear()
        return self.say(ctx, {"who": "clock", "text": "nobody has approved that in time"})

    def say(self, ctx: clonos.ProcessContext, message: dict[str, Any]) -> Iterable[Any] | None:
        """Add to what was said, and ask the model what to do, unless that goes on for ever."""
        talk = [*self.talk.get([]), message]
        if len(talk) >= MESSAGES_MAX:
            return self.end(ctx, talk)
        self.talk.set(talk)
        self.model.ask(ctx.key, talk, then="on_thought")
        return None

    def on_thought(self, reply: clonos.Reply, ctx: clonos.ProcessContext) -> Iterable[Any] | None:
        thought = reply.get()  # raises what the call has raised: the job would fail and say so
        talk = [*self.talk.get(), {"who": "model", **thought}]
        request, act = thought["request"], thought["act"]
        if act == "goodbye":
            return self.end(ctx, talk)
        self.talk.set(talk)
        if act != "refund":
            self.tool.ask(act, ctx.key, request, then="on_tool")
        elif thought["cents"] <= LARGE_CENTS:
            self.bank.ask(ctx.key, request, thought["cents"], then="on_paid")
        else:
            until = ctx.clock.now_ms() + self.patience_ms
            self.wish.set({"request": request, "cents": thought["cents"], "until": until})
            ctx.timers.processing_time(until)
            self.human.ask(ctx.key, request, thought["cents"], then="on_asked")
        return None

    def end(self, ctx: clonos.ProcessContext, talk: list[dict[str, Any]]) -> Iterable[Any]:
        """The conversation is over: a row."""
        self.talk.clear()
        return [(ctx.key, json.dumps(talk))]

    def on_tool(self, reply: clonos.Reply, ctx: clonos.ProcessContext) -> Iterable[Any] | None:
        return self.say(ctx, {"who": "tool", **reply.get()})

    def on_asked(self, reply: clonos.Reply, ctx: clonos.ProcessContext) -> None:
        reply.get()  # the answer comes as a row

    def on_paid(self, reply: clonos.Reply, ctx: clonos.ProcessContext) -> Iterable[Any] | None:
        return self.say(ctx, {"who": "bank", **reply.get()})


def price(thought: dict[str, Any]) -> float:
    """What a call of the model costs, in cents."""
    return float(thought["tokens"] * CENTS_PER_TOKEN)


def decision(row: Any) -> tuple[int, int, str]:
    """A line from the desk."""
    said = json.loads(row.value)
    return said["id"], said["request"], said["text"]


def build(url: str, desk_port: int, talks: int, patience_ms: int) -> clonos.Job:
    """Questions and decisions -> agents -> finished conversations."""
    job = clonos.Job("agents", parallelism=1, checkpoint_interval="500 ms")
    rows = [(n, None, f"Order {n} arrived broken. Can I have my money back?") for n in range(talks)]
    questions = job.source(clonos.sources.from_batches([rows], ROWS), name="questions")
    lines = clonos.sources.socket_lines("127.0.0.1", desk_port, resume=True)
    decisions = job.source(lines, name="desk").map(decision, ROWS)
    agents = questions.union(decisions).key_by("id").process(
        RefundAgent(Shop(url), patience_ms), TALKS, name="agent", in_flight=50, effects=True
    )  # fmt: skip
    agents.sink(clonos.sinks.collect(), name="done")
    return job
