"""A body of another API hands on the fields that mean the same in a chat."""

import msgspec

from quire.server.routes.chat.shared_fields import SharedFields


class Other(msgspec.Struct, kw_only=True):
    temperature: float | None = None
    seed: int | None = None
    stop: str | None = None
    system: str | None = None


def test_fields_that_are_set_have_their_values():
    given = SharedFields(Other, ()).given(Other(temperature=0.0, stop="x", system="y"))
    assert given == {"temperature": 0.0, "stop": "x"}


def test_a_field_that_means_something_else_is_left_out():
    given = SharedFields(Other, {"stop"}).given(Other(seed=0, stop="x"))
    assert given == {"seed": 0}
