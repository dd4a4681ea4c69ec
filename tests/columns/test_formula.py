"""Formulas without Spark: kernels, what is computed for which rows, and what fails."""

from __future__ import annotations

import pickle
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from clonos.columns.evaluation import compute
from clonos.columns.formula import Column, Constant, Expression, apply, columns_of
from clonos.columns.user_functions import PANDAS, whole
from clonos.errors import ExpressionFailed

LONG, BOOL = pa.int64(), pa.bool_()
N, M = Column("n", LONG), Column("m", LONG)


def number(value: int | None) -> Constant:
    return Constant(pa.scalar(value, LONG))


def div(left: Expression, right: Expression) -> Expression:
    return apply("IntegralDivide", [left, right], LONG, "div")


def equal(left: Expression, right: Expression) -> Expression:
    return apply("EqualTo", [left, right], BOOL, "=")


ONE_BY_N = div(number(1), N)
N_IS_0 = equal(N, number(0))
N_IS_NOT_0 = apply("Not", [N_IS_0], BOOL, "not")


def values(made: Expression, n: list[int | None], m: list[int | None] | None = None) -> list[Any]:
    batch = pa.record_batch({"n": pa.array(n, LONG), "m": pa.array(m or n, LONG)})
    return compute(made, batch).to_pylist()  # type: ignore[no-any-return]


def case(*parts: Expression) -> Expression:
    return apply("CaseWhen", parts, parts[-1].type, "case")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (case(N_IS_NOT_0, ONE_BY_N, number(None)), [None, 1, None, 0]),
        (case(N_IS_0, number(7), ONE_BY_N), [7, 1, None, 0]),
        (case(N_IS_0, number(7), equal(ONE_BY_N, number(1)), number(8), number(9)), [7, 8, 9, 9]),
        (apply("Or", [N_IS_0, equal(ONE_BY_N, number(1))], BOOL, "or"), [True, True, None, False]),
        (
            apply("And", [N_IS_NOT_0, equal(ONE_BY_N, number(1))], BOOL, "and"),
            [False, True, None, False],
        ),
        (
            apply("Coalesce", [case(N_IS_0, number(7), number(None)), ONE_BY_N], LONG, "coalesce"),
            [7, 1, None, 0],
        ),
        (apply("Add", [case(N_IS_0, number(None), N), ONE_BY_N], LONG, "+"), [None, 2, None, 2]),
    ],
)  # fmt: skip
def test_a_part_that_can_raise_is_computed_for_the_rows_that_need_it(made, expected):
    assert made.raises
    assert values(made, [0, 1, None, 2]) == expected
    assert values(made, [0]) == expected[:1]
    assert values(made, []) == []
    with pytest.raises(ExpressionFailed, match="DIVIDE_BY_ZERO in div"):
        values(ONE_BY_N, [1, 0])


def test_the_only_argument_may_raise():
    for function in ("UnaryMinus", "Abs"):
        assert values(apply(function, [ONE_BY_N], LONG, function), [1, None, 2])[1:] == [None, 0]


def test_what_comes_first_is_computed_for_all_rows():
    for function in ("And", "Or"):
        made = apply(function, [equal(ONE_BY_N, number(1)), N_IS_0], BOOL, function)
        with pytest.raises(ExpressionFailed):
            values(made, [0])
    with pytest.raises(ExpressionFailed):
        values(case(equal(ONE_BY_N, number(1)), number(1), number(2)), [0])


def test_constants_that_raise_raise_only_where_there_is_a_row():
    made = div(number(1), number(0))
    assert values(made, []) == []
    assert values(case(N_IS_0, made, N), [1, 2]) == [1, 2]
    with pytest.raises(ExpressionFailed):
        values(case(N_IS_0, made, N), [1, 0])


def test_divisors_that_are_constants_do_not_raise():
    assert not div(N, number(7)).raises
    assert div(N, number(-1)).raises, "of the smallest integer"
    assert div(N, number(0)).raises
    assert not div(div(N, number(7)), number(3)).raises


def test_a_null_is_no_dividend():
    assert values(div(N, M), [None, 4], [0, 2]) == [None, 2]
    assert values(apply("Remainder", [N, M], LONG, "%"), [None, -7], [0, 2]) == [None, -1]
    assert values(apply("Pmod", [N, M], LONG, "pmod"), [None, -7], [0, 2]) == [None, 1]


def test_formulas_are_data():
    made = case(N_IS_0, number(7), ONE_BY_N)
    assert pickle.loads(pickle.dumps(made)) == made
    assert pickle.dumps(made) == pickle.dumps(case(N_IS_0, number(7), ONE_BY_N))
    assert columns_of(case(N_IS_0, number(7), M)) == {"n", "m"}
    assert columns_of(number(1)) == frozenset()


def test_slices_are_computed_as_what_they_show():
    batch = pa.record_batch({"n": pa.array([9, 0, 4, None, 2], LONG)}).slice(1, 3)
    made = case(N_IS_0, number(7), div(number(8), N))
    assert compute(made, batch).to_pylist() == [7, 2, None]
    days = pa.record_batch({"d": pa.array([None, 0, 31, 59], pa.int32()).view(pa.date32())})
    month = apply("Month", [Column("d", pa.date32())], pa.int32(), "month(d)")
    assert compute(month, days.slice(1)).to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("pair", [None, float("nan"), pd.NA])
def test_a_pandas_function_with_none_among_the_pairs_of_a_map(pair: Any) -> None:
    """Arrow ends the process."""
    kind = pa.map_(pa.string(), pa.int64())
    given = [pa.array([1, 2])]
    good = whole(lambda _: pd.Series([[("a", 1)], None]), PANDAS, given, kind, 2)
    assert good.to_pylist() == [[("a", 1)], None]
    with pytest.raises(TypeError, match="is no pair of a key and a value"):
        whole(lambda _: pd.Series([[("a", 1)], [pair]]), PANDAS, given, kind, 2)
