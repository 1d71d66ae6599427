"""What structs within a body do not declare is taken out with its path, wherever it is."""

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from quire.server.wire.undeclared_fields import Undeclared, take_undeclared


class Leaf(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 0


class Item(msgspec.Struct, forbid_unknown_fields=True):
    leaf: Leaf | None = None
    free: dict[str, Any] = {}
    leaves: list[Leaf] | None = None


class Root(msgspec.Struct, forbid_unknown_fields=True):
    items: Annotated[list[Item] | str | None, Meta(description="Items.")] = None
    leaf: Leaf | None = None


KNOWN = {kind: kind.__struct_fields__ for kind in (Leaf, Item, Root)}


@pytest.mark.parametrize(
    ("where", "body", "kind"),
    [
        ("", {"x": 1, "leaf": {"a": 1}}, Root),
        ("leaf", {"leaf": {"a": 1, "x": 1}}, Leaf),
        ("items[1]", {"items": [{}, {"x": 1}]}, Item),
        ("items[0].leaf", {"items": [{"leaf": {"x": 1}}]}, Leaf),
        ("items[0].leaves[2]", {"items": [{"leaves": [{}, {}, {"x": 1}]}]}, Leaf),
    ],
)
def test_a_field_is_taken_out_with_its_path(where, body, kind):
    assert list(take_undeclared(body, Root)) == [Undeclared(where, {"x": 1}, KNOWN[kind])]
    assert list(take_undeclared(body, Root)) == []
    msgspec.convert(body, Root)


@pytest.mark.parametrize(
    "body", [{}, {"items": "text"}, {"items": [{"free": {"x": {"y": 1}}}]}, {"leaf": None}]
)
def test_what_is_declared_or_free_is_left(body):
    before = msgspec.json.encode(body)
    assert list(take_undeclared(body, Root)) == []
    assert msgspec.json.encode(body) == before


@pytest.mark.parametrize("value", [3, [], [3], {"items": 3}, {"items": [3, None]}, {"leaf": []}])
def test_what_has_the_wrong_type_is_left_for_the_conversion(value):
    assert list(take_undeclared(value, Root)) == []
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, Root)
