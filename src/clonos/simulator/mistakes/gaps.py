"""Deliberate mistakes in jobs that promise at most once."""

from __future__ import annotations

from typing import Any, Final

from clonos.core import messages as msg
from clonos.core.gaps import Claims
from clonos.core.housekeeper import HouseKeeper
from clonos.core.inflight import InFlightLog
from clonos.core.intake import Intake
from clonos.simulator.mistakes.mutation import GAPS, Mutation, mutation


def all_that_is_kept(_: Any) -> Any:
    return property(lambda log: log.first - 1)


def unclaimed(_: Any) -> Any:
    return lambda _claims, _position: True


def forgotten(_: Any) -> Any:
    def claim(self: HouseKeeper, claim: msg.Claim) -> None:
        self.claimed[claim.task] = claim.rows, claim.cut

    return claim


def one_row_less(original: Any) -> Any:
    def due(self: Claims, position: int, intake: Intake) -> msg.Claim | None:
        claim: msg.Claim | None = original(self, position, intake)
        if claim is None or not claim.rows:
            return claim
        return msg.Claim(claim.task, claim.incarnation, claim.position, claim.rows - 1, claim.cut)

    return due


WRONG_GAPS: Final[dict[str, Mutation]] = {
    "who begins anew is sent what others have had": mutation(
        "at most once", (InFlightLog, "sent", all_that_is_kept), kind=GAPS
    ),
    "rows go on before they are claimed": mutation(
        "at most once", (Claims, "allow", unclaimed), kind=GAPS
    ),
    "claims are not in the journal": mutation(
        "at most once", (HouseKeeper, "claim", forgotten), kind=GAPS
    ),
    "the newest row is not claimed": mutation(
        "at most once", (Claims, "due", one_row_less), kind=GAPS
    ),
}
