"""What a job is started with: nothing is ignored, and each error says what to give."""

from __future__ import annotations

from pathlib import Path

import pytest

import clonos
from clonos.api.starting import StartOptions, for_queries, for_tasks, require_no_options
from clonos.errors import WrongType


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_row_max": 3}, r"no option 'batch_row_max'. To do: did you mean batch_rows_max\?"),
        ({"zzz": 3}, "no option 'zzz'. To do: there are journal, standby, "),
        ({"processing_time": "1 s"}, "processing_time does not apply"),
        ({"batch_rows_max": 0}, "batch_rows_max=0. To do: give a whole number from 1"),
        ({"batch_rows_max": "many"}, "batch_rows_max='many'"),
        ({"standby_slots": -1}, "standby_slots=-1. To do: give a whole number from 0"),
        ({"ui_port": 65_536}, "ui_port=65536. To do: give a whole number from 0 to 65535"),
        ({"linger_ms": -1}, "linger_ms=-1. To do: give a number that is not negative"),
        ({"silence_s": 0}, "silence_s=0. To do: give a number above 0"),
        ({"silence_s": float("inf")}, "silence_s=inf"),
        ({"answer_s": "3"}, "answer_s='3'. To do: give a number above 0"),
        ({"progress_s": True}, "progress_s=True"),
        ({"durability": "none"}, "durability='none'. To do: use 'fsync' or 'process'"),
        ({"standby": "yes"}, "standby='yes'. To do: give True or False"),
        ({"tls": 1}, "tls=1. To do: give True or False"),
        ({"journal": 3}, "journal=3. To do: give a folder or a URI"),
        ({"drop_state": "totals"}, "drop_state='totals'. To do: give a list of operators' names"),
        ({"drop_state": ["totals"]}, r"drop_state=\['totals'\]. To do: state is dropped"),
        ({"renamed": {"a": "b"}}, "or goes elsewhere, in upgrades: add upgrade=True"),
        ({"upgrade": True, "renamed": ["a"]}, r"renamed=\['a'\]. To do: give a dict"),
        ({"listeners": clonos.Listener()}, "To do: give a list of clonos.Listener objects"),
        ({"listeners": [3]}, r"listeners=\[3\]"),
    ],
)
def test_what_makes_no_sense_is_refused(options, said):
    with pytest.raises(WrongType, match=said):
        for_tasks(options)


def test_a_time_limit_is_a_number():
    with pytest.raises(WrongType, match=r"timeout_s=-1\. To do: give a number"):
        for_tasks({}, -1)


def test_what_makes_sense_is_passed_on():
    given: StartOptions = {
        "journal": Path("/data"), "standby": False, "standby_slots": None, "durability": "process",
        "tls": None, "batch_rows_max": 1, "linger_ms": 0, "silence_s": 0.5, "answer_s": 30,
        "listeners": [clonos.Listener()], "progress_s": 1, "sole_driver": True, "ui_port": 0,
        "upgrade": True, "drop_state": ["totals"], "renamed": {"a": "b"}, "profile": None,
    }  # fmt: skip
    assert for_tasks(given, 0) == given


@pytest.mark.parametrize("take", [for_queries, lambda options: require_no_options(options, None)])
def test_plans_have_no_unknown_option_either(take):
    with pytest.raises(WrongType, match="no option 'zzz'"):
        take({"zzz": 1})
