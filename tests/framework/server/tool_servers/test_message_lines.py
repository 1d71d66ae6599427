"""Lines of messages, however they come, and the ids of those that are too long."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.server.tool_servers.message_lines import LongLine, message_lines

LINES = st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=6)


def lines_of(pieces, max_bytes):
    async def read():
        stream = asyncio.StreamReader()
        for piece in pieces:
            stream.feed_data(piece)
        stream.feed_eof()
        return [line async for line in message_lines(stream, max_bytes)]

    return asyncio.run(read())


@given(LINES, st.integers(1, 40))
def test_lines_are_kept_up_to_a_size(lines, max_bytes):
    found = lines_of([b"\n".join(lines)], max_bytes)
    kept = [line if len(line) <= max_bytes else LongLine(None) for line in lines or [b""]]
    assert found == kept


@pytest.mark.parametrize(
    ("message", "request_id"),
    [
        ({"jsonrpc": "2.0", "id": 7, "result": {"a": "x" * 900}}, 7),
        ({"id": 7, "jsonrpc": "2.0", "result": {"a": "x" * 900}}, 7),
        ({"jsonrpc": "2.0", "result": {"a": "x" * 900}, "id": 7}, 7),
        ({"result": {"a": "x" * 900}, "id": 7, "jsonrpc": "2.0"}, 7),
        ({"jsonrpc": "2.0", "result": {"a": "x" * 900, "id": 7}}, None),
        ({"jsonrpc": "2.0", "result": "x" * 900 + '"id": 7}'}, None),
        ({"jsonrpc": "2.0", "id": "7", "result": "x" * 900}, None),
    ],
)
def test_a_line_that_is_too_long_tells_its_request(message, request_id):
    line = json.dumps(message).encode() + b"\n"
    assert lines_of([line, b"next\n"], 800)[:2] == [LongLine(request_id), b"next"]
