"""Structs of OpenAI's Responses API: the request, the output items and the response."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from quire.server.wire.common_fields import SampledBody, about, no_effect
from quire.server.wire.mcp_items import McpApprovalRequestItem, McpCallItem, McpListToolsItem
from quire.server.wire.protocol import TokenLogprob

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
IncompleteReason = Literal["max_output_tokens", "max_tool_rounds"]
FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (  # all but the first concern hosted tools, media and hidden reasoning
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
_SHOWN = no_effect("all that is stored is shown.")
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Format of the text."""

    format: Annotated[
        dict[str, Any] | None, about("text, json_object, or json_schema with its schema.")
    ] = None
    verbosity: Annotated[Any, no_effect("templates get variables by chat_template_kwargs.")] = None


class ReasoningOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of the reasoning."""

    effort: Annotated[str | None, about("Variable reasoning_effort of the chat template.")] = None
    summary: Annotated[str | None, no_effect("the reasoning itself is shown.")] = None
    generate_summary: Annotated[str | None, no_effect("the reasoning itself is shown.")] = None


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream of a response."""

    include_obfuscation: Annotated[bool | None, no_effect("events have no padding.")] = None


class ResponseBody(SampledBody, kw_only=True):
    """POST /v1/responses."""

    input: Annotated[
        str | list[dict[str, Any]] | None, about("A text or a list of items; null to go on.")
    ] = None
    instructions: Annotated[str | None, about("A system message; it is not carried over.")] = None
    previous_response_id: Annotated[str | None, about("Stored response that is continued.")] = None
    background: Annotated[
        bool | None, about("Generate without a connection; the response is retrieved later.")
    ] = None
    store: Annotated[
        bool | None, about("Whether the response is stored; default: if the server stores any.")
    ] = None
    metadata: Annotated[
        dict[str, str] | None, about("Up to 16 texts by their names, which are stored, too.")
    ] = None
    max_output_tokens: Annotated[int | None, about("Largest number of tokens of the output.")] = (
        None
    )
    include: Annotated[
        list[str] | None, about("message.output_text.logprobs adds log probabilities.")
    ] = None
    top_logprobs: Annotated[int | None, about("Number of candidates with log probabilities.")] = (
        None
    )
    tools: Annotated[
        list[dict[str, Any]] | None,
        about("Functions and custom tools that the model may call, and tool servers."),
    ] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        about("none, auto, required, one of the tools, or some of them."),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, about("Whether the output may have several calls.")
    ] = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        about("auto: a prompt that is too long loses its beginning; disabled: it is refused."),
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, about("Variables of the chat template.")
    ] = None
    stream_options: ResponseStreamOptions | None = None
    max_tool_calls: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        about("Largest number of calls of tools of tool servers; functions do not count."),
    ] = None
    user: Annotated[str | None, no_effect("clients are known by their key.")] = None
    safety_identifier: Annotated[str | None, no_effect("clients are known by their key.")] = None
    session_id: Annotated[Any, no_effect("requests of a session share nothing but prefixes.")] = (
        None
    )
    service_tier: Annotated[Any, no_effect("there is one tier; priority orders requests.")] = None
    prompt_cache_key: Annotated[
        str | None, no_effect("equal prefixes are shared; cache_salt separates them.")
    ] = None
    prompt_cache_options: Annotated[
        Any, no_effect("equal prefixes are shared; cache_salt separates them.")
    ] = None
    prompt_cache_retention: Annotated[
        Any, no_effect("the least recently used blocks are replaced first.")
    ] = None
    spaces_between_special_tokens: Annotated[
        Any, no_effect("special tokens are shown as the tokenizer writes them.")
    ] = None

    @property
    def completion_limit(self) -> int | None:
        """Maximum number of tokens of a completion; None for the model's length."""
        return self.max_output_tokens


class ResponseQuery(msgspec.Struct, kw_only=True):
    """Parameters of GET /v1/responses/{response_id}."""

    stream: Annotated[bool, about("Return the events, if they are stored.")] = False
    starting_after: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        about("Number of the event after which the events begin; it needs stream=true."),
    ] = None
    include: Annotated[list[str] | None, _SHOWN] = None
    include_obfuscation: Annotated[bool | None, no_effect("events have no padding.")] = None


class ItemsQuery(msgspec.Struct, kw_only=True):
    """Parameters of GET /v1/responses/{response_id}/input_items."""

    limit: Annotated[int, Meta(ge=1, le=100, description="Largest number of items.")] = 20
    order: Annotated[Literal["desc", "asc"], about("Whether the last item comes first.")] = "desc"
    after: Annotated[str | None, about("Id of the item after which the page begins.")] = None
    before: Annotated[str | None, about("Id of the item before which the page ends.")] = None
    include: Annotated[list[str] | None, _SHOWN] = None


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
    """A call of a function; the arguments of an incomplete one have broken off."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class CustomCallItem(msgspec.Struct, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool; the input of an incomplete one has broken off."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str


OutputItem = (
    OutputMessage
    | ReasoningItem
    | FunctionCallItem
    | CustomCallItem
    | McpListToolsItem
    | McpCallItem
    | McpApprovalRequestItem
)


class IncompleteDetails(msgspec.Struct):
    """Why a response is incomplete; null if a repeated pattern ended it."""

    reason: IncompleteReason | None = None


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
