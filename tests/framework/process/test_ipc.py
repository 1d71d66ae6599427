"""Messages are encoded as msgpack; what cannot be read or sent is a typed error."""

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidRequestError, QuireError
from quire.process.ipc import UnreadableError, decode, encode
from quire.sampling_params import StructuredOutputsParams


class Ball(msgspec.Struct, frozen=True, tag=True):
    number: int


class Hoop(msgspec.Struct, frozen=True, tag=True):
    color: str


class Trap:
    """Unpickling it would leave a trace."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@given(st.binary(max_size=200))
def test_random_bytes_are_a_message_or_a_typed_error(data):
    try:
        message = decode(data, Ball | Hoop)
    except UnreadableError:
        return
    assert isinstance(message, Ball | Hoop)


def test_what_the_message_itself_refuses_is_unreadable():
    with pytest.raises(UnreadableError, match="exactly one of"):
        decode(encode({"regex": "a", "choice": ["b"]}), StructuredOutputsParams)


@pytest.mark.parametrize(
    "thing",
    [object(), 2**64, "\ud800", Trap("x"), [Ball(1), {1, object()}]],
    ids=["object", "large", "surrogate", "trap", "inside"],
)
def test_what_msgpack_cannot_carry_is_a_typed_error(thing):
    with pytest.raises(QuireError, match="cannot be sent"):
        encode(thing)


def test_an_unreadable_message_is_a_quire_error_but_no_request_error():
    assert issubclass(UnreadableError, QuireError)
    assert not issubclass(UnreadableError, InvalidRequestError)
