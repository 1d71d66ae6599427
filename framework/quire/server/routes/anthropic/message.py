"""The response of /v1/messages: a message of content blocks, and the events of its stream.

The type of each struct is the first field of its JSON text, where the stream finds an event's name.
"""

from typing import Literal

import msgspec

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text for the user."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning of the model; the signature is a constant, as nothing is signed."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool; its input is an object, kept as JSON text."""

    id: str
    name: str
    input: msgspec.Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class TextBlockDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """Text that continues a text block."""

    text: str


class ThinkingBlockDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """Reasoning that continues a thinking block."""

    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The end of a thinking block."""

    signature: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """JSON text that continues the input of a call."""

    partial_json: str


BlockDelta = TextBlockDelta | ThinkingBlockDelta | SignatureDelta | InputJsonDelta


class ContentBlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """An empty block begins."""

    index: int
    content_block: Block


class ContentBlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """A block goes on."""

    index: int
    delta: BlockDelta


class ContentBlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """A block is complete."""

    index: int


class MessageUsage(msgspec.Struct):
    """Token counts; the three kinds of input tokens together are those of the prompt."""

    input_tokens: int  # without those that were cached
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0


class Message(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """A message of the assistant; in the first event of a stream it has no content yet."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """A stream begins."""

    message: Message


class MessageEnd(msgspec.Struct):
    """How a message has ended."""

    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """How a streamed message has ended, with the counts of all of its tokens."""

    delta: MessageEnd
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """A stream is complete."""


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """What is sent in a silence."""


BlockEvent = ContentBlockStart | ContentBlockDelta | ContentBlockStop
EVENTS = (
    MessageStart,
    ContentBlockStart,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
    Ping,
)


class MessageTokens(msgspec.Struct):
    """The response of /v1/messages/count_tokens."""

    input_tokens: int
