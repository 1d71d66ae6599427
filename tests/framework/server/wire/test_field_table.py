"""A table of fields says what the code does with them."""

from typing import Annotated, Any

import msgspec

from quire.server.wire.common_fields import about, no_effect
from quire.server.wire.field_table import FieldRow, FieldTable
from quire.server.wire.fields import Refusal


class Options(msgspec.Struct):
    deep: Annotated[bool | None, about("How deep.")] = None


class Body(msgspec.Struct, rename={"kind": "type"}):
    zeta: Annotated[int | None, about("A number.")] = None
    kind: Annotated[str | None, about("A kind.")] = None
    user: Annotated[Any, no_effect("clients are known by their key.")] = None
    options: Options | None = None
    plain: list[Options] | None = None


def test_fields_stand_in_the_order_of_their_handling_and_names():
    refused = {"alpha": Refusal("send zeta", (0, "")), "zeta": Refusal("not this one")}
    assert FieldTable("POST /x", Body, refused).rows() == [
        FieldRow("options.deep", "honoured", "How deep"),
        FieldRow("plain", "honoured", ""),
        FieldRow("type", "honoured", "A kind"),
        FieldRow("zeta", "honoured", "A number"),
        FieldRow("user", "no effect", "clients are known by their key"),
        FieldRow("alpha", "refused", 'send zeta (`0` or `""` is accepted)'),
    ]


def test_a_row_is_a_row_of_a_table():
    assert FieldRow("a", "refused", "send b").markdown() == "| `a` | refused | send b |"
