import msgpack
import numpy as np
import pandas as pd
import pytest

from clonos.causal import ServiceTooSlow, values  # noqa: F401 - registers the codecs
from clonos.causal.entries import (
    CALL,
    CLOCK,
    Entry,
    decode_chunk,
    decode_error,
    digest_of,
    encode_chunk,
    encode_error,
)
from clonos.core import canonical
from clonos.errors import CallError, MalformedMessage, UnencodableValue


def test_a_chunk_comes_back_as_it_was():
    entries = [
        Entry(digest_of(i), kind, ok, bytes([i]))
        for i, (kind, ok) in enumerate([(CALL, True), (CALL, False), (CLOCK, True)])
    ]
    assert decode_chunk(encode_chunk(entries)) == entries
    assert decode_chunk(encode_chunk([])) == []


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xc1",
        msgpack.packb(3),
        msgpack.packb([b"digest", 6, True]),
        msgpack.packb([b"digest", 6, 1, b"answer"]),
        msgpack.packb(["digest", 6, True, b"answer"]),
        encode_chunk([Entry(b"d" * 16, CALL, True, b"answer")])[:-1],
    ],
)
def test_anything_else_is_malformed(bad):
    with pytest.raises(MalformedMessage):
        decode_chunk(bad)


def test_an_exception_comes_back_as_the_same_class():
    for error, cls in [
        (ValueError("no"), ValueError),
        (ServiceTooSlow("slow"), ServiceTooSlow),
        (CallError("x.Y", "no"), CallError),
    ]:
        again = decode_error(encode_error(error))
        assert type(again) is cls
        assert type(decode_error(encode_error(again))) is cls


@pytest.mark.parametrize(
    "value",
    [np.arange(6, dtype="float32").reshape(2, 3), np.zeros((0, 4)), np.array(["a", "bc"])],
)
def test_arrays_are_kept(value):
    again = canonical.decode(canonical.encode({"embedding": value}))["embedding"]
    assert again.dtype == value.dtype
    np.testing.assert_array_equal(again, value)
    again[...] = again  # may be written to


def test_pandas_objects_are_kept():
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None]}, index=[5, 7])
    pd.testing.assert_frame_equal(canonical.decode(canonical.encode(frame)), frame)
    series = pd.Series([1.5, 2.5], name=("odd", "name"))
    pd.testing.assert_series_equal(canonical.decode(canonical.encode(series)), series)


def test_objects_inside_arrays_are_refused():
    with pytest.raises(UnencodableValue, match="dtype object"):
        canonical.encode(np.array([object()]))
    with pytest.raises(UnencodableValue):
        canonical.encode(pd.DataFrame({"a": [1, "x"]}))


def test_equal_questions_have_equal_digests_and_others_do_not():
    assert digest_of(("f", {"a": {2, 1}})) == digest_of(("f", {"a": {1, 2}}))
    assert digest_of(("f", 1)) != digest_of(("f", 1.0))
    assert digest_of(("f", "1")) != digest_of(("f", b"1"))
