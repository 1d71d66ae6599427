"""Outputs of calls, cut at a number of bytes."""

from hypothesis import given
from hypothesis import strategies as st

from quire.server.tool_servers.tool_outcome import cut, failed, failed_in_tool, succeeded


@given(st.text(max_size=2000), st.integers(256, 1000))
def test_a_text_has_at_most_so_many_bytes_and_says_what_is_missing(text, max_bytes):
    found = cut(text, max_bytes)
    assert len(found.encode()) <= max_bytes
    size = len(text.encode("utf-8", "replace"))
    if size <= max_bytes:
        assert found == text.encode("utf-8", "replace").decode()
    else:
        kept, note = found.rsplit("\n", 1)
        assert note == f"[cut off: the output has {size} bytes]"
        assert text.encode("utf-8", "replace").startswith(kept.encode())


def test_outcomes_have_the_shapes_of_openai():
    assert succeeded("yes", 256).error is None
    tool = failed_in_tool("no", 256).error
    assert (tool.type, tool.content) == (
        "mcp_tool_execution_error", [{"type": "text", "text": "no"}],
    )  # fmt: skip
    protocol = failed("gone", -32000, 256).error
    assert (protocol.type, protocol.code, protocol.message) == (
        "mcp_protocol_error", -32000, "gone",
    )  # fmt: skip
    assert failed_in_tool("", 256).text
