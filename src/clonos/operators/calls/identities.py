"""Effects that rows share because they have one identity: they must ask for one thing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from clonos.core.calls import Request
from clonos.errors import OtherArguments
from clonos.operators.calls.service import Policy
from clonos.state.deltas import WHOLE_TASK
from clonos.state.stores import ADDRESS, KeyedStore

_REFUSED: Final = b"o"


class Identities:
    """What the effects with an identity are about, as long as rows wait for them.

    A row with the identity of such an effect and with other arguments is *refused*: its call is not
    made, and its outcome is an error. That it was refused is part of the state: otherwise its call
    might be made in a later life, when the first one is forgotten.

    Parameters
    ----------
    policy
        The effect.
    store
        Where refusals are recorded.

    Attributes
    ----------
    known
        By name of an effect, the digests of its arguments, by the number of the row.
    """

    def __init__(self, policy: Policy, store: KeyedStore) -> None:
        self._store = store
        self.known: defaultdict[str, dict[int, int]] = defaultdict(dict)
        self._refusing = policy.refusing(
            OtherArguments("an effect with the same identity has other arguments")
        )

    def restored(self, requests: Mapping[int, Request]) -> dict[int, Request]:
        """The calls that an earlier life has asked for."""
        return {
            number: self._refused(request) if self._was_refused(number, request)
            else self._counted(number, request)
            for number, request in requests.items()
        }  # fmt: skip

    def _was_refused(self, number: int, request: Request) -> bool:
        """Whether a row was refused, and asks for the same as then: what is an argument, or part of
        the identity, may have changed between two starts."""
        return bool(
            self._store.get(ADDRESS.pack(_REFUSED, number)) == [request.key, request.digest]
        )

    def asked(self, number: int, request: Request) -> Request:
        """A row asks: what it may ask for."""
        others = self.known.get(request.key, {}).values()
        if not request.digest or all(other in (0, request.digest) for other in others):
            return self._counted(number, request)  # a digest of 0 says nothing
        self._store.put(ADDRESS.pack(_REFUSED, number), WHOLE_TASK, [request.key, request.digest])
        return self._refused(request)

    def _counted(self, number: int, request: Request) -> Request:
        self.known[request.key][number] = request.digest
        return request

    def _refused(self, request: Request) -> Request:
        return request._replace(service=self._refusing)

    def gone(self, number: int, request: Request) -> None:
        """A row has left."""
        if self._store.get(mark := ADDRESS.pack(_REFUSED, number)):
            self._store.put(mark, WHOLE_TASK, None)
        if request.service is self._refusing:
            return
        known = self.known[request.key]
        del known[number]
        if not known:
            del self.known[request.key]
