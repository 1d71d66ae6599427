"""Structs of request and response bodies: OpenAI's fields and quire's own.

A field that is absent or null has its default. A number of the wrong type is an error and is not
converted. A request has no other fields than those of its struct, those of samplers, and those that
`wire/fields` refuses by name. In responses, `UNSET` leaves a field out where OpenAI does so; None
writes null.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quire.outputs import PromptLogprobs

FinishReason = Literal["stop", "length", "repetition", "tool_calls"]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Annotated[
        bool | None, Meta(description="No effect: events have no padding.")
    ] = None


class QueuedBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body whose request is queued in the engine; what the queue has to know of it."""

    model: str | None = None
    stream: bool | None = None
    priority: int | None = None
    timeout_s: float | None = None

    @property
    def completion_limit(self) -> int | None:
        """Maximum number of tokens of a completion; None for the model's length."""
        raise NotImplementedError


class AcceptedFields(QueuedBody, kw_only=True):
    """Fields of OpenAI's and vLLM's clients that change no completion here."""

    user: Annotated[Any, Meta(description="No effect: clients are known by their key.")] = None
    safety_identifier: Annotated[
        Any, Meta(description="No effect: clients are known by their key.")
    ] = None
    session_id: Annotated[
        Any, Meta(description="No effect: requests of a session share nothing but prefixes.")
    ] = None
    metadata: Annotated[Any, Meta(description="No effect: completions are not stored.")] = None
    store: Annotated[Any, Meta(description="No effect: completions are not stored.")] = None
    service_tier: Annotated[
        Any, Meta(description="No effect: there is one tier; priority orders requests.")
    ] = None
    prediction: Annotated[
        Any, Meta(description="No effect: the completion is the one without it.")
    ] = None
    prompt_cache_key: Annotated[
        Any, Meta(description="No effect: equal prefixes are shared; cache_salt separates them.")
    ] = None
    prompt_cache_options: Annotated[
        Any, Meta(description="No effect: equal prefixes are shared; cache_salt separates them.")
    ] = None
    prompt_cache_retention: Annotated[
        Any, Meta(description="No effect: the least recently used blocks are replaced first.")
    ] = None
    verbosity: Annotated[
        Any, Meta(description="No effect: templates get variables by chat_template_kwargs.")
    ] = None
    spaces_between_special_tokens: Annotated[
        Any, Meta(description="No effect: special tokens are shown as the tokenizer writes them.")
    ] = None


class SamplingBody(AcceptedFields, kw_only=True):
    """Fields common to both kinds of completions, named as in `SamplingParams`."""

    n: int | None = None
    best_of: int | None = None
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
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: dict[str, Any] | None = None  # a StructuredOutputsParams
    response_format: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    repetition_detection: dict[str, Any] | None = None  # RepetitionDetectionParams
    logits_processors: list[Any] | None = None  # names; what else it has is refused by name
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    use_beam_search: bool | None = None  # with n beams
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    cache_salt: str | None = None
    truncate_prompt_tokens: int | None = None  # -1: as many as the model takes
    truncation_side: str | None = None
    request_id: str | None = None  # of the response only
    add_special_tokens: bool | None = None  # None: to texts, not to what a template writes
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    stream_interval: int | None = None  # least number of tokens of an event
    stream_options: StreamOptions | None = None


DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, without a chat


class CompletionBody(SamplingBody, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any]  # text, texts, token ids, or lists of token ids
    logprobs: int | None = None
    echo: bool | None = None

    @property
    def completion_limit(self) -> int:
        """Maximum number of tokens of a completion."""
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens


class FunctionCall(msgspec.Struct):
    """A function that the assistant called, in a conversation or in a response."""

    name: str
    arguments: str


class Function(msgspec.Struct, kw_only=True, rename={"returned": "return"}):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    returned: Any = None  # of transformers' schemas; for the template
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool; only functions are supported."""

    type: str
    function: Function


class AllowedTools(msgspec.Struct):
    """A choice among some of the tools."""

    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]  # each names a function


class ChatBody(SamplingBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]]  # the frontend checks them
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None  # each a Tool; kept whole for the template
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    include_reasoning: bool | None = None
    reasoning_effort: str | None = None

    @property
    def completion_limit(self) -> int | None:
        """Maximum number of tokens of a completion; None for the model's length."""
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a prompt, or messages with what else the chat template takes."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None  # the frontend checks them
    model: str | None = None
    add_special_tokens: Annotated[
        bool | None, Meta(description="Default: true for a prompt, false for messages.")
    ] = None
    return_token_strs: bool | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: str | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class CachedTokens(msgspec.Struct):
    """Number of prompt tokens found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class CompletionLogprobs(msgspec.Struct):
    """Log probabilities in the format of /v1/completions; null for the first prompt token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One completion, or a piece of one."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The response of /v1/completions, or one event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class TopLogprob(msgspec.Struct):
    """A candidate token at a position."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct):
    """The token at a position, and the top candidates there."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log probabilities in the format of /v1/chat/completions."""

    content: list[TokenLogprob]
    refusal: None = None


class MessageToolCall(msgspec.Struct, kw_only=True):
    """A complete tool call."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(msgspec.Struct, kw_only=True):
    """A complete message of the assistant."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[MessageToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One complete choice of a chat."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The response of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionDelta(msgspec.Struct, kw_only=True):
    """A piece of a call: its name first, then its arguments."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """A piece of a tool call; `id`, `type` and the name are sent once."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(msgspec.Struct, kw_only=True):
    """The part of a message that one event adds."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True):
    """A piece of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
