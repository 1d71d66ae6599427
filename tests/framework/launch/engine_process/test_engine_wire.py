"""Messages between processes are the same on the other side."""

import pytest

import quire.errors
from quire.config import GROUPS, Settings
from quire.errors import (
    CheckpointCorruptError,
    GrammarError,
    InvalidRequestError,
    QuireError,
    RequestError,
)
from quire.frontend.dispatch.engine_client import error_of
from quire.launch.engine_process.engine_wire import EncodedRequest, EngineConfig
from quire.messages import AdapterRef, EngineRequest, ErrorReport
from quire.process.error_message import ErrorMessage
from quire.process.ipc import decode, encode
from quire.sampling_params import SamplingParams, StructuredOutputsParams

ERRORS = [
    error
    for error in vars(quire.errors).values()
    if isinstance(error, type) and issubclass(error, QuireError)
]


def cross(message):
    return decode(encode(message), type(message))


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_arrives_as_the_same_error_with_the_same_message(kind):
    received = cross(ErrorMessage.of(kind("it cannot be"))).error()
    assert type(received) is kind
    assert (str(received), received.code) == ("it cannot be", kind.code)


def test_the_field_that_is_to_blame_crosses_too():
    received = cross(ErrorMessage.of(GrammarError("no", param="regex"))).error()
    assert received.param == "regex"


def test_an_error_of_a_plugin_arrives_as_the_nearest_of_ours():
    class TornError(CheckpointCorruptError):
        """A plugin's own."""

    received = cross(ErrorMessage.of(TornError("in the middle"))).error()
    assert type(received) is CheckpointCorruptError
    assert str(received) == "in the middle"


def test_a_plugins_error_that_has_a_name_of_ours_is_its_own_parent():
    own = type("GrammarError", (CheckpointCorruptError,), {})
    received = cross(ErrorMessage.of(own("borrowed"))).error()
    assert type(received) is CheckpointCorruptError


def test_a_cause_crosses_as_text():
    report = cross(ErrorReport("x", "it failed", "ValueError: torn"))
    assert str(error_of(report).__cause__) == "ValueError: torn"


def test_an_error_that_is_not_ours_keeps_its_name():
    received = cross(ErrorMessage.of(ZeroDivisionError("by zero"))).error()
    assert type(received) is QuireError
    assert str(received) == "ZeroDivisionError: by zero"


def test_an_unknown_error_type_is_still_one_of_our_errors():
    assert type(ErrorMessage("MadeUpError", "x").error()) is QuireError
    assert not isinstance(ErrorMessage("MadeUpError", "x").error(), RequestError)


def test_every_setting_crosses_unchanged():
    options = {"model": "m", "samplers": ["a"], "max_num_seqs": 3, "kv_store": "s"}
    options["kv_store_options"] = {"size": "1"}
    config = EngineConfig(
        settings=Settings.from_options(options),
        name="engine",
        address="unix://x",
        log_level=20,
        choices=["quire 1 in /a", "models M dist 1.0"],
    )
    received = cross(config)
    assert received == config
    assert all(type(getattr(received.settings, group)) is kind for group, kind in GROUPS.items())


def test_a_request_crosses_unchanged():
    request = EngineRequest(
        request_id="r",
        token_ids=[1, 2**31],
        params=SamplingParams(
            seed=2**63 - 1,
            temperature=0.1 + 0.2,
            extra_args={"odd": True},
            stop=("\n",),
            structured_outputs=StructuredOutputsParams(json={"a": [1, None, {"b": 1.5}]}),
        ),
        max_tokens=3,
        seed=2**63 - 1,
        stop_token_ids=(5, 6),
        adapter=AdapterRef("pirate", "path", "hash"),
        timeout_s=1.5,
    )
    assert cross(EncodedRequest.of(request)).request() == request


def test_a_request_with_a_field_that_msgpack_cannot_carry_is_refused_when_it_is_packed():
    request = EngineRequest(
        request_id="r", token_ids=[2**64], params=SamplingParams(), max_tokens=1, seed=0
    )
    with pytest.raises(InvalidRequestError, match="cannot be sent"):
        EncodedRequest.of(request)


def test_a_request_of_the_wrong_shape_is_refused_when_it_is_unpacked():
    request = EngineRequest(
        request_id="r", token_ids=["x"], params=SamplingParams(), max_tokens=1, seed=0
    )
    with pytest.raises(InvalidRequestError, match="token_ids"):
        cross(EncodedRequest.of(request)).request()
