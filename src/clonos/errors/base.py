"""What all errors have in common."""

from __future__ import annotations

import builtins
import re
from typing import Any, ClassVar, Final

GROUP: Final[Any] = getattr(builtins, "BaseExceptionGroup", ())
"""The class of groups of exceptions, which Python has from 3.11 on."""

_KEY: Final = re.compile(r"(?<=//)[^@\s]*:[^@\s]*@")
"""A secret may contain an unescaped slash; a user name without a secret is not masked."""

_NAME: Final = re.compile(r"""[?&;#]([\w.%\[\]@$:+-]+)=""")
"""The name of a parameter of a URI."""
_SECRET: Final = re.compile(
    r"""token|secret|passw|passphrase|passcode|credential|signature|assertion|verifier$|saml
    |sess(?:ion)?_?id\]?$|^hdn(?:ts|ea|tl)$
    |(?:api|access|account|shared|private|subscription|auth)[_-]?key(?:[_-]?id)?\]?$
    |(?:^|[\W_]|(?-i:[a-z](?=[A-Z])))
    (?:key|sslkey|sig|hmac|pwd?|pass|auth|authorization|jwt|sas|otp|sid|creds?|cookie|bearer)\]?$""",
    re.IGNORECASE | re.VERBOSE,
)
"""What such a name has if its value may be a secret, ..."""
_NONE: Final = re.compile(
    r"(?:max_?tokens?|tokenizer|token_?type|signature_?(?:version|method)"
    r"|(?:partition|row|sort|foreign|public|idempotency)[_-]?key)$",
    re.IGNORECASE,
)
"""... what ends one that only looks like that, ..."""
_PERHAPS: Final = re.compile(r"(?:auth(?:orization)?_?)?code|ticket", re.IGNORECASE)
"""... and those whose value may be a secret if it is not short, as the code of a country is. The
keys of Azure's functions are called code; what lets a user in is called so, too, or ticket."""
_SHORT: Final = 10
_VALUE: Final = re.compile(r"""(?:[^&#\s"'<>\\]|\\+[uUx])+""")
r"""A letter may be escaped, such as \u00fc in JSON."""
_ESCAPED: Final = re.compile("%([0-9a-fA-F]{2})")


def masked(text: str) -> str:
    """Return a text without the keys and user names in its URIs, and without the values of
    parameters whose names are those of secrets.

    Examples
    --------
    >>> masked("cannot read s3://KEY:SEC/RET@bucket/job")
    'cannot read s3://***@bucket/job'
    >>> masked("abfss://container@account/job and tls://slot-3@10.0.0.1:4000")
    'abfss://container@account/job and tls://slot-3@10.0.0.1:4000'
    >>> masked("POST https://api.example/v1?region=eu&api_key=abc failed")
    'POST https://api.example/v1?region=eu&api_key=*** failed'
    """
    text = _KEY.sub("***@", text)
    shown, at = "", 0
    for name in _NAME.finditer(text):
        value = _VALUE.match(text, name.end())
        if name.start() >= at and value is not None and _is_secret(name[1], value[0]):
            shown, at = f"{shown}{text[at : name.end()]}***", value.end()
    return shown + text[at:]


def _is_secret(name: str, value: str) -> bool:
    name = _ESCAPED.sub(lambda code: chr(int(code[1], 16)), name)
    if _PERHAPS.fullmatch(name):
        return len(value) >= _SHORT
    return _SECRET.search(name) is not None and _NONE.search(name) is None


class ClonosError(Exception):
    """Base of all errors raised by clonos.

    Parameters
    ----------
    what
        What happened, in one sentence.
    where
        The operator or task, such as ``"count[3]"``; empty if the whole job is meant.
    remedy
        What the reader can do about it.
    trace
        The user's own lines that led to it, if it happened in another process (see
        :func:`clonos.blame.users_traceback`). It comes first in the error's text.

    Keys in URIs are left out of all four.
    """

    usual_remedy: ClassVar[str] = ""
    """What to do about errors of this class, unless one says otherwise."""

    def __init__(self, what: str, *, where: str = "", remedy: str = "", trace: str = "") -> None:
        self.what, self.where, self.trace = masked(what), masked(where), masked(trace)
        self.remedy = masked(remedy or self.usual_remedy)
        super().__init__(self.what, self.where, self.remedy)

    def __str__(self) -> str:
        trace = f"\n{self.trace}\n" if self.trace else ""
        place = f"{self.where}: " if self.where else ""
        said = f"{self.sentence} To do: {self.remedy}" if self.remedy else self.what
        return f"{trace}{place}{said}"

    @property
    def sentence(self) -> str:
        """What happened, with a full stop, so that another sentence may follow."""
        return self.what if self.what.endswith((".", "?", "!")) else f"{self.what}."

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.what, self.where, self.remedy, self.trace)


def _rebuild(cls: type[ClonosError], what: str, where: str, remedy: str, trace: str) -> ClonosError:
    return cls(what, where=where, remedy=remedy, trace=trace)


class Fenced(ClonosError):
    """A later life of the task has taken over: what this one still tried to do was refused, and is
    not needed."""


def message_of(error: BaseException) -> str:
    """The message of an exception; a group's, which only counts, ends with its first error's.

    Examples
    --------
    >>> message_of(ValueError("no"))
    'no'
    """
    text = str(error)
    while isinstance(error, GROUP):
        error = error.exceptions[0]
        text += f": {type(error).__name__}: {error}"
    return text
