"""Structs of request and response bodies: OpenAI's fields and quire's own.

In responses, `UNSET` leaves a field out where OpenAI does so; None writes null.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.outputs import PromptLogprobs
from quire.server.wire.common_fields import SampledBody, about, no_effect

FinishReason = Literal["stop", "length", "repetition", "tool_calls"]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a stream."""

    include_usage: Annotated[bool | None, about("Whether a last event has the usage.")] = None
    continuous_usage_stats: Annotated[
        bool | None, about("Whether all events have the usage so far.")
    ] = None
    include_obfuscation: Annotated[bool | None, no_effect("events have no padding.")] = None


class AcceptedFields(SampledBody, kw_only=True):
    """Fields of OpenAI's and vLLM's clients that change no completion here."""

    user: Annotated[Any, no_effect("clients are known by their key.")] = None
    safety_identifier: Annotated[Any, no_effect("clients are known by their key.")] = None
    session_id: Annotated[Any, no_effect("requests of a session share nothing but prefixes.")] = (
        None
    )
    metadata: Annotated[Any, no_effect("completions are not stored.")] = None
    store: Annotated[Any, no_effect("completions are not stored.")] = None
    service_tier: Annotated[Any, no_effect("there is one tier; priority orders requests.")] = None
    prediction: Annotated[Any, no_effect("the completion is the one without it.")] = None
    prompt_cache_key: Annotated[
        Any, no_effect("equal prefixes are shared; cache_salt separates them.")
    ] = None
    prompt_cache_options: Annotated[
        Any, no_effect("equal prefixes are shared; cache_salt separates them.")
    ] = None
    prompt_cache_retention: Annotated[
        Any, no_effect("the least recently used blocks are replaced first.")
    ] = None
    verbosity: Annotated[Any, no_effect("templates get variables by chat_template_kwargs.")] = None
    spaces_between_special_tokens: Annotated[
        Any, no_effect("special tokens are shown as the tokenizer writes them.")
    ] = None


class SamplingBody(AcceptedFields, kw_only=True):
    """Fields common to both kinds of completions; beams are among them."""

    n: Annotated[int | None, about("Number of choices of each prompt, up to 128.")] = None
    best_of: Annotated[
        int | None, about("Number of completions, of which the best n are returned.")
    ] = None
    max_tokens: Annotated[int | None, about("Largest number of tokens of a completion.")] = None
    response_format: Annotated[
        dict[str, Any] | None, about("A constraint of the completion, in OpenAI's form.")
    ] = None
    prompt_logprobs: Annotated[
        int | None, about("Number of candidates with log probabilities, in the prompt.")
    ] = None
    logprob_token_ids: Annotated[
        list[int] | None, about("Token ids that have log probabilities in place of the likeliest.")
    ] = None
    use_beam_search: Annotated[bool | None, about("Search with n beams instead of sampling.")] = (
        None
    )
    length_penalty: Annotated[
        float | None, about("Exponent of the length in the score of a beam.")
    ] = None
    early_stopping: Annotated[
        bool | str | None, about("When a beam search ends: false, true or never.")
    ] = None
    return_token_ids: Annotated[
        bool | None, about("Return the token ids of prompt and completion.")
    ] = None
    return_tokens_as_token_ids: Annotated[
        bool | None, about("Show tokens of log probabilities as `token_id:17`.")
    ] = None
    stream_options: StreamOptions | None = None


DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's, without a chat


class CompletionBody(SamplingBody, kw_only=True):
    """POST /v1/completions."""

    prompt: Annotated[
        str | list[Any], about("A text, token ids, or a list of up to 256 of either.")
    ]
    logprobs: Annotated[int | None, about("Number of candidates with log probabilities.")] = None
    echo: Annotated[bool | None, about("Put the prompt in front of the completion.")] = None

    @property
    def completion_limit(self) -> int:
        """Maximum number of tokens of a completion."""
        return DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens


class FunctionCall(msgspec.Struct):
    """A function that the assistant called, in a conversation or in a response."""

    name: str
    arguments: str


class ChatBody(SamplingBody, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[
        list[dict[str, Any]], about("The conversation.")
    ]  # the frontend checks them
    max_completion_tokens: Annotated[
        int | None, about("Largest number of tokens of a completion; goes before max_tokens.")
    ] = None
    logprobs: Annotated[bool | None, about("Whether log probabilities are returned.")] = None
    top_logprobs: Annotated[int | None, about("Number of candidates with log probabilities.")] = (
        None
    )
    tools: Annotated[
        list[dict[str, Any]] | None, about("Functions and custom tools that the model may call.")
    ] = None  # each a Tool or a CustomTool; functions are kept whole for the template
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        about("none, auto, required, one of the tools, or some of them."),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, about("Whether the answer may have several calls.")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, about("Variables of the chat template.")
    ] = None
    add_generation_prompt: Annotated[
        bool | None, about("Whether the prompt ends with the start of the assistant's turn.")
    ] = None
    continue_final_message: Annotated[
        bool | None, about("Whether the completion continues the last message.")
    ] = None
    include_reasoning: Annotated[bool | None, about("Whether the answer has the reasoning.")] = None
    reasoning_effort: Annotated[
        str | None, about("Variable of the chat template; none switches the thinking off.")
    ] = None

    @property
    def completion_limit(self) -> int | None:
        """Maximum number of tokens of a completion; None for the model's length."""
        given = self.max_completion_tokens
        return self.max_tokens if given is None else given


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a prompt, or messages with what else the chat template takes."""

    prompt: Annotated[str | None, about("The text.")] = None
    messages: Annotated[
        list[dict[str, Any]] | None, about("A conversation, in place of a text.")
    ] = None  # the frontend checks them
    model: Annotated[str | None, about("The model or an adapter.")] = None
    add_special_tokens: Annotated[
        bool | None,
        about("Whether special tokens are added; default: to a prompt, not to messages."),
    ] = None
    return_token_strs: Annotated[
        bool | None, about("Return the tokens as the tokenizer spells them.")
    ] = None
    tools: Annotated[
        list[dict[str, Any]] | None, about("Functions that the chat template shows.")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, about("Variables of the chat template.")
    ] = None
    add_generation_prompt: Annotated[
        bool | None, about("Whether the prompt ends with the start of the assistant's turn.")
    ] = None
    continue_final_message: Annotated[
        bool | None, about("Whether the prompt ends within the last message.")
    ] = None
    reasoning_effort: Annotated[
        str | None, about("Variable of the chat template; none switches the thinking off.")
    ] = None


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize."""

    tokens: Annotated[list[int], about("The token ids.")]
    model: Annotated[str | None, about("The model or an adapter.")] = None


class CachedTokens(msgspec.Struct):
    """Number of prompt tokens found in the prefix cache."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct):
    """Tokens of the reasoning in all completions, without its marks."""

    reasoning_tokens: int


class Usage(msgspec.Struct):
    """Token counts of a request; a model without a reasoning parser has no further details."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


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


class MessageToolCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function"):
    """A complete tool call."""

    id: str
    function: FunctionCall


class CustomCall(msgspec.Struct):
    """The custom tool that the assistant called, or a piece of its input."""

    input: str
    name: str | UnsetType = UNSET


class MessageCustomCall(msgspec.Struct, kw_only=True, tag_field="type", tag="custom"):
    """A complete call of a custom tool."""

    id: str
    custom: CustomCall


class ChatMessage(msgspec.Struct, kw_only=True):
    """A complete message of the assistant."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[MessageToolCall | MessageCustomCall] | UnsetType = UNSET


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
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET
    custom: CustomCall | UnsetType = UNSET


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
