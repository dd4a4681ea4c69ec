"""What a function says of the calls to it, wherever they are made: ``@clonos.service``.

The decorator itself is :func:`clonos.causal.service`, for it serves plain PySpark as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from clonos.operators.effects import Effect
    from clonos.operators.service import PolicyOptions, Service

How = TypeVar("How", bound=Mapping[str, Any])


class Declared:
    """A function, or an effect, and how it is asked.

    Attributes
    ----------
    fn
        What is asked.
    how
        What was said of it, and nothing else.
    """

    fn: Callable[..., Any] | Effect
    how: PolicyOptions

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Ask in a task of plain PySpark, where the answer is kept for its retries."""
        raise NotImplementedError

    def ask_now(self, *arguments: Any, **named: Any) -> Any:
        """Make one call, with its attempts, and wait for it; nothing of it is kept."""
        raise NotImplementedError


def undeclared(
    fn: Callable[..., Any] | Service | Effect | Declared, how: How
) -> tuple[Callable[..., Any] | Service | Effect, How]:
    """The function itself, and how it is asked there; what is said there overrides.

    Examples
    --------
    >>> undeclared(len, {"attempts": 3})
    (<built-in function len>, {'attempts': 3})
    """
    if isinstance(fn, Declared):
        together: Any = {**fn.how, **how}
        return fn.fn, together
    return fn, how
