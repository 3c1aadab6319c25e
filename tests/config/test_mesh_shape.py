"""`parse_mesh_shape` reads what it should, and says everything that is wrong with the rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_dist.config import parse_mesh_shape
from keras_dist.errors import MeshError

NAMES = st.text(st.characters(exclude_characters=",=", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name == name.strip() and name != "-"
)
SHAPES = st.dictionaries(NAMES, st.integers(1, 10**6), min_size=1, max_size=5)
SPACES = st.sampled_from(["", " ", "  ", "\t", " \n "])


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("data=4,model=2", {"data": 4, "model": 2}),
        ("model=2,data=4", {"model": 2, "data": 4}),
        ("  data = 4 ,\tmodel= 2\n", {"data": 4, "model": 2}),
        ("data=-1,model=4", {"data": -1, "model": 4}),
        ("batch=8", {"batch": 8}),
        ("軸=08", {"軸": 8}),
    ],
)
def test_reads_sizes_in_order(text: str, shape: dict[str, int]) -> None:
    assert list(parse_mesh_shape(text).items()) == list(shape.items())


@given(SHAPES, st.data())
def test_spaces_do_not_count_and_one_size_may_be_open(shape: dict[str, int], data: st.DataObject) -> None:
    shape[data.draw(st.sampled_from(sorted(shape)))] = -1

    def space() -> str:
        return data.draw(SPACES)

    text = ",".join(f"{space()}{name}{space()}={space()}{size}{space()}" for name, size in shape.items())
    assert parse_mesh_shape(text) == shape


@given(st.text(st.sampled_from("ab-=, 0123x.\n"), max_size=20))
def test_any_text_is_a_shape_or_a_mesh_error(text: str) -> None:
    try:
        shape = parse_mesh_shape(text)
    except MeshError as error:
        assert error.given == repr(text)
    else:
        assert shape
        assert all(size >= 1 or size == -1 for size in shape.values())
        assert list(shape.values()).count(-1) <= 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it has no axes"),
        ("data=2,data=4", "axis 'data' appears twice"),
        ("=2", "the name of an axis is empty"),
        ("-=2", "an axis cannot be named '-'"),
        ("data=0", "axis 'data' cannot have the size '0'"),
        ("data=2.0", "axis 'data' cannot have the size '2.0'"),
        ("data=four", "axis 'data' cannot have the size 'four'"),
        ("data=+2", "axis 'data' cannot have the size '+2'"),
        ("data=1_0", "axis 'data' cannot have the size '1_0'"),
        ("data=\uff12", "axis 'data' cannot have the size '\uff12'"),
        ("data=2 model=4", "axis 'data' cannot have the size '2 model=4'"),
        ("data=" + "9" * 5000, "axis 'data' cannot have the size '999"),
        ("data", "'data' has no '='"),
        ("2,4", "'2' has no '='; '4' has no '='"),
        ("data=2,", "nothing stands before or after a comma"),
        ("data=-1,model=-1", "several sizes are -1"),
        ("data=0,model,=4", "axis 'data' cannot have the size '0'; 'model' has no '='; the name of an axis is empty"),
    ],
)
def test_refusal_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(MeshError) as caught:
        parse_mesh_shape(text)
    error = caught.value
    assert error.summary.startswith(f"mesh shape {text!r}: ")
    assert said in error.summary
    assert error.given == repr(text)
    assert "name=size" in error.expected
    assert "an integer >= 1, or -1 for one axis" in error.expected
    assert error.fix == 'for example "data=2,model=4"'
