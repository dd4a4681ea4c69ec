"""Pauses between attempts, however many there were."""

from __future__ import annotations

from clonos.operators.calls.service import policy_of


def test_pauses_end_at_their_limit_and_no_number_is_too_large():
    async def ask(question):
        return question

    policy = policy_of(ask, "judge", in_flight=1, attempts=5000, backoff=("100 ms", "8 s"))
    pauses = [policy.pause_s(attempts) for attempts in (1, 2, 1000, 1100, 5000)]
    assert [0.05 <= pauses[0] <= 0.1, 0.1 <= pauses[1] <= 0.2] == [True, True]
    assert all(4.0 <= pause_s <= 8.0 for pause_s in pauses[2:])
