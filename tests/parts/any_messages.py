"""Strategies of messages in Anthropic's blocks: some follow the API, and others nearly."""

from changed_json import WRONG
from hypothesis import strategies as st

from quire.server.routes.anthropic.conversation import BILLING, ROLES
from quire.server.routes.anthropic.sent_blocks import BLOCKS, BLOCKS_OF

_CALLED = {
    "role": "assistant",
    "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}],
}
_VALUES = {
    "type": st.sampled_from([*BLOCKS, "image", "nothing"]),
    "text": st.sampled_from(["", "a", BILLING]),
    "input": st.just({"a": 1}),
    "content": st.just([]) | st.just([{"type": "text", "text": "r"}]) | st.just("r"),
    "tool_use_id": st.just("toolu_1"),
    "id": st.just("toolu_1"),
    "is_error": st.booleans(),
    "cache_control": st.none(),
}


@st.composite
def blocks(draw):
    """Return a block of any type, in which any field may be wrong or missing."""
    kind = draw(st.sampled_from([*BLOCKS, *BLOCKS_OF["assistant"]]))
    fields = {name: draw(_VALUES.get(name, st.just("x"))) for name in sorted(BLOCKS[kind])}
    block = {"type": kind} | fields
    for name in draw(st.lists(st.sampled_from(sorted(block)), max_size=1)):
        block[name] = draw(WRONG)
    return block


@st.composite
def any_messages(draw):
    """Return messages of any blocks; many of them follow the API, and others nearly."""
    contents = st.lists(blocks() | WRONG, max_size=3) | WRONG
    roles = st.sampled_from(list(ROLES))
    message = st.fixed_dictionaries({"role": roles | WRONG, "content": contents})
    return draw(st.lists(message | message | st.just(_CALLED), max_size=4))
