"""What must be the same in all processes of a job so that replays are bit-exact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clonos.errors import OtherVersion
from clonos.transport.events import Register

HASH_SEED: Final = "PYTHONHASHSEED"
"""Spark sets it for its workers."""
MACHINE: Final = "machine"
CPU: Final = "CPU features of NumPy"
"""NumPy chooses its functions by what the processor can do, and their results may differ in the
last bit: those of `exp`, `log`, `tan`, `power` and others do with and without AVX-512. Arrow
chooses, too (`simd_level`), but its sums, means, variances and products have the same bits at every
level."""
OF_SLOTS: Final = frozenset({HASH_SEED, MACHINE, CPU})
"""What must be the same in all slots. The driver replays nothing, so it may have others."""
SAME_ENVIRONMENT: Final = (
    "use the same environment everywhere (spark.pyspark.python, or spark.archives with a packed"
    " environment)"
)
_ONE_SEED: Final = "set spark.executorEnv.PYTHONHASHSEED to one number, such as 0"


def is_fixed(hash_seed: str) -> bool:
    """Whether sets of strings have the same order in every process with this hash seed.

    Examples
    --------
    >>> is_fixed("0"), is_fixed("random"), is_fixed("")
    (True, False, False)
    """
    return hash_seed.isascii() and hash_seed.isdigit()


def check_versions(register: Register, first: Register, driver: Mapping[str, str]) -> None:
    """Compare a slot's versions with the driver's or, where only slots matter, with the first
    slot's.

    Raises
    ------
    OtherVersion
        Something differs, or hash seeds are random: a replay there could have another result.
    """
    where = f"slot {register.slot} on {register.host}"
    seed = register.versions.get(HASH_SEED, "")
    if not is_fixed(seed):
        raise OtherVersion(
            f"the executor has {_named(HASH_SEED, seed)}: each process would iterate over sets in "
            "an order of its own",
            where=where,
            remedy=_ONE_SEED,
        )
    should_be = {**driver, **{what: first.versions.get(what, "") for what in OF_SLOTS}}
    for what, version in should_be.items():
        theirs = register.versions.get(what, "")
        if theirs != version:
            raise OtherVersion(
                f"the executor has {_named(what, theirs)}; it should have {_named(what, version)}",
                where=where,
                remedy=_remedy(what, theirs, version),
            )


def _remedy(what: str, theirs: str, version: str) -> str:
    """The remedy: how an executor gets the same versions as the others."""
    if what == CPU:
        apart = sorted(set(theirs.split()) ^ set(version.split()))
        return f'set spark.executorEnv.NPY_DISABLE_CPU_FEATURES to "{" ".join(apart)}"'
    if what == MACHINE:
        return "use executors of one architecture"
    return _ONE_SEED if what == HASH_SEED else SAME_ENVIRONMENT


def _named(what: str, version: str) -> str:
    return f"{what} {version}" if version else f"no {what}"
