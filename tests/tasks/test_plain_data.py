import json
import math
from collections import Counter, OrderedDict, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from troll.tasks.sandbox import plain_data
from troll.tasks.sandbox.plain_data import NotPlainError, decode, encode

hashables = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
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


def test_containers_of_the_standard_library_become_dicts():
    for value in (OrderedDict(a=1), Counter("a"), defaultdict(int, a=1)):
        assert type(decode(encode(value))) is dict
        assert decode(encode(value)) == {"a": 1}


class Int(int):
    pass


class Dict(dict):
    def items(self):
        return [("a", 1)]


@pytest.mark.parametrize(
    "value", [Int(3), Dict(), object(), int, len, iter([]), range(3), [Int(3)], {"a": Int(1)}, NotImplemented]
)
def test_other_types_are_refused(value):
    with pytest.raises(NotPlainError, match="type"):
        encode(value)


def test_depth_and_size_are_bounded(monkeypatch):
    deep = []
    for _ in range(plain_data.MAX_DEPTH):
        deep = [deep]
    with pytest.raises(NotPlainError, match="deep"):
        encode(deep)
    wide = [0]
    for _ in range(12):
        wide = [wide, wide]
    monkeypatch.setattr(plain_data, "MAX_NODES", 1000)
    with pytest.raises(NotPlainError, match="large"):
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
    with pytest.raises(NotPlainError, match="colliding"):
        decode(json.dumps({"t": kind, "v": payload}))
