"""A line of a batch is a request, or says what is wrong with it."""

import json

import msgspec
import pytest
from batch_parts import URL, line_of

from quire.cli.batch.batch_lines import (
    BatchFault,
    BatchResponse,
    BatchResult,
    LineError,
    custom_id_of,
    fault_of,
    read_request,
)

GOOD = {"custom_id": "a", "method": "POST", "url": URL, "body": {"x": [1]}}


def encoded(**changes):
    return json.dumps({**GOOD, **changes}).encode()


def test_a_request_has_its_name_its_route_and_its_body_as_it_stands_in_the_file():
    read = read_request(
        b'{"method":"POST","body":{ "x" : 1e3 },"url":"/v1/echo","custom_id":"a"}', [URL]
    )
    assert (read.custom_id, read.url, read.body) == ("a", URL, b'{ "x" : 1e3 }')


def test_what_a_client_adds_to_a_line_is_left_alone():
    assert read_request(encoded(note="mine"), [URL]).body == b'{"x": [1]}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"nonsense", "JSON is malformed"),
        (b"[1]", "Expected `object`"),
        (b"\xff", "JSON is malformed"),
        (b"[" * 100_000, "no request"),
        (encoded(custom_id=7), "Expected `str`"),
        (encoded(method="GET"), "Invalid enum value 'GET'"),
        (encoded(url="/v1/ecko"), "url must be one of /v1/echo, got '/v1/ecko'; did you mean"),
        (encoded(body={"stream": True}), "a batch has no streams"),
        (encoded(body={"background": True}), "a batch waits for its responses"),
        (json.dumps({"custom_id": "a"}).encode(), "missing required field `method`"),
    ],
)
def test_a_line_that_is_no_request_says_why(line, said):
    with pytest.raises(LineError, match=said) as caught:
        read_request(line, [URL])
    named = line.startswith(b"{") and b'"custom_id": 7' not in line
    assert caught.value.custom_id == ("a" if named else None)


def test_a_body_that_is_no_object_is_for_the_route_to_refuse():
    assert read_request(encoded(body=[1]), [URL]).body == b"[1]"
    assert read_request(encoded(body={"stream": None}), [URL]).body == b'{"stream": null}'


def test_a_name_is_found_also_in_a_line_that_is_no_request():
    assert custom_id_of(b'{"custom_id": "a", "method": 1}') == "a"
    assert custom_id_of(line_of("b")) == "b"
    assert custom_id_of(b'{"custom_id": 1}') is None
    assert custom_id_of(b"\xff") is None


def test_a_result_begins_with_its_id_and_is_one_line():
    response = BatchResponse(200, "id_1", msgspec.Raw(b'{"a":1}'))
    line = BatchResult(id="id_1", custom_id="a", response=response).line()
    assert line.startswith(b'{"id":"id_1",')
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "id": "id_1",
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "id_1", "body": {"a": 1}},
        "error": None,
    }


def test_the_error_of_a_response_is_found_in_its_body():
    body = b'{"error": {"message": "wrong", "type": "t", "param": null, "code": "c"}}'
    assert fault_of(body, 400) == BatchFault("c", "wrong")
    other = b'{"type": "error", "error": {"type": "t", "message": "wrong"}}'
    assert fault_of(other, 400) == BatchFault("t", "wrong")
    assert fault_of(b"[]", 418) == BatchFault(None, "the response has the status 418")
