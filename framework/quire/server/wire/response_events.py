"""Events of the stream of a response; `type` is the first field of each."""

import msgspec

from quire.server.wire.protocol import TokenLogprob
from quire.server.wire.responses import OutputItem, OutputText, ReasoningText, ResponseObject


class _Event(msgspec.Struct, kw_only=True):
    sequence_number: int


class _ResponseEvent(_Event, kw_only=True):
    response: ResponseObject


class ResponseCreated(_ResponseEvent, tag="response.created"):
    """A response has begun."""


class ResponseInProgress(_ResponseEvent, tag="response.in_progress"):
    """A response is generated."""


class ResponseCompleted(_ResponseEvent, tag="response.completed"):
    """A response is complete."""


class ResponseIncomplete(_ResponseEvent, tag="response.incomplete"):
    """A response ended before the model ended it."""


class ResponseFailed(_ResponseEvent, tag="response.failed"):
    """A response failed."""


class _ItemEvent(_Event, kw_only=True):
    output_index: int


class OutputItemAdded(_ItemEvent, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    item: OutputItem


class OutputItemDone(_ItemEvent, kw_only=True, tag="response.output_item.done"):
    """An item has ended."""

    item: OutputItem


class _PartEvent(_ItemEvent, kw_only=True):
    item_id: str
    content_index: int = 0  # an item has one part


class ContentPartAdded(_PartEvent, kw_only=True, tag="response.content_part.added"):
    """The text of an item begins."""

    part: OutputText | ReasoningText


class ContentPartDone(_PartEvent, kw_only=True, tag="response.content_part.done"):
    """The text of an item has ended."""

    part: OutputText | ReasoningText


class OutputTextDelta(_PartEvent, kw_only=True, tag="response.output_text.delta"):
    """A piece of a message's text."""

    delta: str
    logprobs: list[TokenLogprob]


class OutputTextDone(_PartEvent, kw_only=True, tag="response.output_text.done"):
    """The whole text of a message."""

    text: str
    logprobs: list[TokenLogprob]


class ReasoningTextDelta(_PartEvent, kw_only=True, tag="response.reasoning_text.delta"):
    """A piece of the reasoning."""

    delta: str


class ReasoningTextDone(_PartEvent, kw_only=True, tag="response.reasoning_text.done"):
    """The whole text of a reasoning item."""

    text: str


class ArgumentsDelta(_ItemEvent, kw_only=True, tag="response.function_call_arguments.delta"):
    """A piece of a call's arguments."""

    item_id: str
    delta: str


class ArgumentsDone(_ItemEvent, kw_only=True, tag="response.function_call_arguments.done"):
    """All arguments of a call."""

    item_id: str
    name: str
    arguments: str


class CustomInputDelta(_ItemEvent, kw_only=True, tag="response.custom_tool_call_input.delta"):
    """A piece of the input of a custom tool's call."""

    item_id: str
    delta: str


class CustomInputDone(_ItemEvent, kw_only=True, tag="response.custom_tool_call_input.done"):
    """The whole input of a custom tool's call."""

    item_id: str
    input: str
