"""Structs of OpenAI's Responses API: the request, the output items and the response."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.server.wire.protocol import QueuedBody, TokenLogprob

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Format of the text."""

    format: dict[str, Any] | None = None
    verbosity: Annotated[
        Any, Meta(description="No effect: templates get variables by chat_template_kwargs.")
    ] = None


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of the reasoning."""

    effort: str | None = None
    summary: Annotated[
        str | None, Meta(description="No effect: the reasoning itself is shown.")
    ] = None
    generate_summary: Annotated[
        str | None, Meta(description="No effect: the reasoning itself is shown.")
    ] = None


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream of a response."""

    include_obfuscation: Annotated[
        bool | None, Meta(description="No effect: events have no padding.")
    ] = None


class ResponseBody(QueuedBody, kw_only=True):
    """POST /v1/responses."""

    input: str | list[dict[str, Any]] | None = None  # None: that of the previous response
    instructions: str | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    max_output_tokens: int | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream_options: ResponseStreamOptions | None = None
    max_tool_calls: Annotated[
        int | None, Meta(description="No effect: it limits hosted tools, of which there are none.")
    ] = None
    user: Annotated[str | None, Meta(description="No effect: clients are known by their key.")] = (
        None
    )
    safety_identifier: Annotated[
        str | None, Meta(description="No effect: clients are known by their key.")
    ] = None
    prompt_cache_key: Annotated[
        str | None,
        Meta(description="No effect: equal prefixes are shared; cache_salt separates them."),
    ] = None
    prompt_cache_retention: Annotated[
        Any, Meta(description="No effect: the least recently used blocks are replaced first.")
    ] = None
    prompt_cache_options: Annotated[
        Any, Meta(description="No effect: equal prefixes are shared; cache_salt separates them.")
    ] = None
    service_tier: Annotated[
        str | None, Meta(description="No effect: there is one tier; priority orders requests.")
    ] = None
    session_id: Annotated[
        Any, Meta(description="No effect: requests of a session share nothing but prefixes.")
    ] = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    seed: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    repetition_detection: dict[str, Any] | None = None
    logits_processors: list[Any] | None = None
    cache_salt: str | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    request_id: str | None = None
    add_special_tokens: bool | None = None
    stream_interval: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def completion_limit(self) -> int | None:
        """Maximum number of tokens of a completion; None for the model's length."""
        return self.max_output_tokens


class OutputText(msgspec.Struct, kw_only=True, tag="output_text"):
    """The text of a message."""

    text: str
    annotations: list[None] = []  # those of hosted tools, of which there are none
    logprobs: list[TokenLogprob] = []


class ReasoningText(msgspec.Struct, kw_only=True, tag="reasoning_text"):
    """The text of a reasoning item."""

    text: str


class OutputMessage(msgspec.Struct, kw_only=True, tag="message"):
    """A message of the assistant."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(msgspec.Struct, kw_only=True, tag="reasoning"):
    """Reasoning of the model; its text is in `content`, and there is no summary of it."""

    id: str
    status: ItemStatus
    summary: list[None] = []
    content: list[ReasoningText]


class FunctionCallItem(msgspec.Struct, kw_only=True, tag="function_call"):
    """A call of a function; one that broke off is incomplete."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem


class IncompleteDetails(msgspec.Struct):
    """Why a response is incomplete; null if a repeated pattern ended it."""

    reason: Literal["max_output_tokens"] | None = None


class ResponseFailure(msgspec.Struct):
    """Why a response failed."""

    code: FailureCode
    message: str
    type: str | None = None
    param: str | None = None


class InputDetails(msgspec.Struct):
    """Tokens of the prompt that the prefix cache had; none are counted as written to it."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """Tokens of the reasoning, without its marks."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, with what its request asked for."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    completed_at: int | None = None
    background: bool
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None = None
    user: str | None


class DeletedResponse(msgspec.Struct):
    """The response to a deletion."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItemList(msgspec.Struct, kw_only=True):
    """A page of the items that a response was generated from."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool
