import enum
import json
import math
from collections import (
    ChainMap,
    Counter,
    OrderedDict,
    UserDict,
    UserList,
    UserString,
    defaultdict,
    deque,
    namedtuple,
)
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from troll.tasks.sandbox import plain_data
from troll.tasks.sandbox.plain_data import NotPlainError, decode, encode

hashables = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.fractions()
    | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=8,
)
values = st.recursive(
    hashables | st.integers(min_value=2**1000, max_value=2**5000) | st.text(st.characters(categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashables, inner, max_size=4)
        | st.sets(hashables, max_size=4)
    ),
    max_leaves=20,
)


def types_of(value):
    """Equality does not tell 1 from True or 1.0; the shape of types does."""
    if isinstance(value, (list, tuple)):
        return type(value), [types_of(item) for item in value]
    if isinstance(value, dict):
        return type(value), [(types_of(key), types_of(item)) for key, item in value.items()]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(str(types_of(item)) for item in value)
    return type(value)


@given(values)
def test_what_goes_in_comes_out(value):
    text = encode(value)
    assert "\n" not in text and text.isascii()
    back = decode(text)
    assert back == value
    assert types_of(back) == types_of(value)


def test_nan_and_infinities_survive():
    back = decode(encode([math.nan, math.inf, -math.inf, -0.0]))
    assert math.isnan(back[0]) and back[1:3] == [math.inf, -math.inf] and math.copysign(1, back[3]) == -1


class Int(int):
    __eq__ = lambda self, other: True  # noqa: E731
    __hash__ = int.__hash__
    __int__ = __index__ = lambda self: 4
    __class__ = float


class Float(float):
    __float__ = lambda self: 4.0  # noqa: E731


class Complex(complex):
    __complex__ = lambda self: 4j  # noqa: E731


class Text(str):
    __str__ = __repr__ = lambda self: "other"
    encode = lambda self, *_: b"other"  # noqa: E731


class Bytes(bytes):
    __bytes__ = lambda self: b"other"  # noqa: E731


class Items(list):
    __iter__ = lambda self: iter([4])  # noqa: E731
    __len__ = lambda self: 1  # noqa: E731
    __getitem__ = lambda self, _: 4  # noqa: E731


class Pair(namedtuple("Pair", "a b")):
    __iter__ = lambda self: iter([4])  # noqa: E731
    __eq__ = lambda self, other: True  # noqa: E731


class Group(set):
    __iter__ = lambda self: iter([4])  # noqa: E731


class Dict(dict):
    def items(self):
        return [("a", 1)]


class Kind(enum.IntEnum):
    A = 3


class Word(enum.StrEnum):
    A = "a"


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (Int(3), 3),
        (Float(0.5), 0.5),
        (Complex(1j), 1j),
        (Text("a"), "a"),
        (Text("\ud800"), "\ud800"),
        (Bytes(b"a"), b"a"),
        (Items([1, Int(2)]), [1, 2]),
        (Pair(1, Pair(2, 3)), (1, (2, 3))),
        (Group([1, 2]), {1, 2}),
        (Dict(b=2), {"b": 2}),
        ({Kind.A: Word.A}, {3: "a"}),
        (OrderedDict(a=1), {"a": 1}),
        (Counter("a"), {"a": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        (ChainMap({"a": 1}, {"b": 2}), {"a": 1, "b": 2}),
        (UserDict(a=1), {"a": 1}),
        (UserList([1]), [1]),
        (UserString("a"), "a"),
        ({"a": 1}.keys(), {"a"}),
        ({"a": 1}.items(), {("a", 1)}),
        (bytearray(b"a"), b"a"),
        (memoryview(b"a"), b"a"),
        (Fraction(-1, 3), Fraction(-1, 3)),
        (Decimal("0.10"), Fraction(1, 10)),
        (Decimal("-Infinity"), -math.inf),
        (np.float32(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.array(3), 3),
        (np.array("a"), "a"),
        (np.array([3.0]), [3.0]),
    ],
)
def test_other_types_become_the_data_that_they_hold(value, data):
    back = decode(encode(value))
    assert back == data and types_of(back) == types_of(data)


@pytest.mark.parametrize("number", [Decimal("NaN"), Decimal("sNaN"), np.float16("nan")])
def test_what_is_not_a_number_is_a_float(number):
    assert math.isnan(decode(encode(number)))


class Raises(UserList):
    def __iter__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    "value",
    [
        object(),
        int,
        len,
        iter([]),
        range(3),
        deque([1]),
        {}.values(),
        [range(3)],
        {"a": range(3)},
        NotImplemented,
        Raises([1]),
        np.array([1, 2]),
        np.array([]),
        np.array([[1], [2]]),
        np.datetime64("2026-01-01"),
        np.longdouble(1) / 3,
    ],
)
def test_other_types_are_refused(value):
    with refused("type", error=NotPlainError):
        encode(value)


def test_depth_and_size_are_bounded(monkeypatch):
    deep = []
    for _ in range(plain_data.MAX_DEPTH):
        deep = [deep]
    with refused("deep", error=NotPlainError):
        encode(deep)
    wide = [0]
    for _ in range(12):
        wide = [wide, wide]
    monkeypatch.setattr(plain_data, "MAX_NODES", 1000)
    with refused(plain_data.TOO_LARGE, error=NotPlainError):
        encode(wide)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "{}",
        '{"t":"int"}',
        '{"t":"int","v":7}',
        '{"t":"int","v":"__import__"}',
        '{"t":"object","v":[]}',
        '{"t":"dict","v":[[1]]}',
        '{"t":"dict","v":{"a":1}}',
        '{"t":"set","v":[[1]]}',
        '{"t":"fraction","v":["1","0"]}',
        '{"t":"fraction","v":["1"]}',
        '{"t":"fraction","v":[1,2]}',
        '{"t":"complex","v":[1]}',
        '{"t":"complex","v":["x",1]}',
        '{"t":"bytes","v":"zz"}',
        '{"t":["tuple"],"v":[]}',
        "[" * 100_000,
        "[" * 500 + "]" * 500,
        "1" * 10_000,
    ],
)
def test_malformed_text_is_refused(text):
    with pytest.raises(NotPlainError):
        decode(text)


@pytest.mark.parametrize(
    "make", [lambda i: i * (2**61 - 1), lambda i: {"t": "tuple", "v": [i * (2**61 - 1)]}]
)
@pytest.mark.parametrize("kind", ["set", "frozenset", "dict"])
def test_keys_made_to_collide_are_refused_before_a_table_is_built(make, kind):
    items = [make(i) for i in range(1, 5000)]
    payload = [[item, 0] for item in items] if kind == "dict" else items
    with refused("hashes", error=NotPlainError):
        decode(json.dumps({"t": kind, "v": payload}))
