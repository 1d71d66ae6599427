"""Structs of Ollama's bodies and replies."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from quire.server.wire.common_fields import QueuedBody, about, no_effect
from quire.server.wire.fields import Refusal
from quire.server.wire.protocol import TokenLogprob

_LOADED = no_effect("the model is loaded when the server starts.")


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """Options of a completion."""

    temperature: Annotated[float | None, about("Temperature; 0: the most likely token.")] = None
    top_k: Annotated[int | None, about("Number of most likely tokens to sample from.")] = None
    top_p: Annotated[
        float | None, about("Probability that the most likely tokens have together.")
    ] = None
    min_p: Annotated[
        float | None, about("Least probability of a token, as a share of the largest.")
    ] = None
    typical_p: Annotated[
        float | None, about("Probability that the most typical tokens have together.")
    ] = None
    seed: Annotated[int | None, about("Below 0: a random one.")] = None
    stop: Annotated[str | list[str] | None, about("Texts that end the completion.")] = None
    num_predict: Annotated[int | None, about("Below 1: the model's length.")] = None
    repeat_penalty: Annotated[float | None, about("Factor against tokens that the text has.")] = (
        None
    )
    repeat_last_n: Annotated[
        int | None,
        about("-1, or 0 for no penalties: penalties read all tokens."),
    ] = None
    presence_penalty: Annotated[
        float | None, about("Difference for tokens that the completion has.")
    ] = None
    frequency_penalty: Annotated[
        float | None, about("Difference for each time that the completion has a token.")
    ] = None
    mirostat: Annotated[int | None, about("Version of Mirostat: 0 (off), 1 or 2.")] = None
    mirostat_tau: Annotated[float | None, about("Surprise that Mirostat aims at.")] = None
    mirostat_eta: Annotated[float | None, about("Rate at which Mirostat adapts.")] = None
    num_ctx: Annotated[int | None, no_effect("the server's max_model_len counts.")] = None
    num_keep: Annotated[int | None, no_effect("a context is never shifted.")] = None
    numa: Annotated[bool | None, _LOADED] = None
    num_batch: Annotated[int | None, _LOADED] = None
    num_gpu: Annotated[int | None, _LOADED] = None
    main_gpu: Annotated[int | None, _LOADED] = None
    num_thread: Annotated[int | None, _LOADED] = None
    low_vram: Annotated[bool | None, _LOADED] = None
    f16_kv: Annotated[bool | None, _LOADED] = None
    use_mmap: Annotated[bool | None, _LOADED] = None
    use_mlock: Annotated[bool | None, _LOADED] = None
    logits_all: Annotated[bool | None, about("Only false.")] = None
    vocab_only: Annotated[bool | None, about("Only false.")] = None
    embedding_only: Annotated[bool | None, about("Only false.")] = None
    tfs_z: Annotated[float | None, about("Only 1.")] = None
    penalize_newline: Annotated[bool | None, about("Only true.")] = None


class OllamaBody(QueuedBody, kw_only=True):
    """Fields common to chats and text completions."""

    stream: Annotated[bool | None, about("Default: true.")] = None
    format: Annotated[str | dict[str, Any] | None, about('"json", or a JSON schema.')] = None
    options: Options | None = None
    think: Annotated[bool | str | None, about("True, false, or low, medium or high.")] = None
    keep_alive: Annotated[Any, no_effect("the model stays loaded.")] = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def __post_init__(self) -> None:
        if self.stream is None:
            self.stream = True

    @property
    def completion_limit(self) -> int | None:
        """Maximum number of tokens of a completion; None for the model's length."""
        given = None if self.options is None else self.options.num_predict
        return given if given is not None and given > 0 else None


class SentFunction(msgspec.Struct, forbid_unknown_fields=True):
    """A function that the assistant called, as a client sends it back."""

    name: str
    arguments: dict[str, Any] = {}
    index: Annotated[int | None, no_effect("calls have the order in which they are sent.")] = None


class SentCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call of an earlier turn."""

    function: SentFunction
    id: str | None = None
    type: Annotated[Any, no_effect("every call is one of a function.")] = None


class SentMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message of a conversation."""

    role: str
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[SentCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: Annotated[list[Any] | None, about("Only an empty list.")] = None


class OllamaChatBody(OllamaBody, kw_only=True):
    """POST /api/chat."""

    messages: Annotated[
        list[SentMessage] | None,
        about("The conversation; none: load the model."),
    ] = None
    tools: list[dict[str, Any]] | None = None  # each a Tool; kept whole for the template


class OllamaGenerateBody(OllamaBody, kw_only=True):
    """POST /api/generate."""

    prompt: Annotated[str | None, about("Empty: load the model.")] = None
    system: Annotated[str | None, about("Message of the system before the prompt.")] = None
    raw: Annotated[bool | None, about("True: the prompt as it is, without the chat template.")] = (
        None
    )


class CalledFunction(msgspec.Struct):
    """A function that the assistant calls."""

    index: int
    name: str
    arguments: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]


class OllamaCall(msgspec.Struct):
    """A complete tool call."""

    id: str
    function: CalledFunction


class OllamaMessage(msgspec.Struct, kw_only=True):
    """A message of the assistant, or a piece of one."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaReply(msgspec.Struct, kw_only=True):
    """A response, or a line of its stream; what only the last line has is absent in others.

    Durations are in nanoseconds. `load_duration` is the time before the engine began with the
    prompt, waiting included.
    """

    model: str
    created_at: str
    done: bool = False
    done_reason: Literal["stop", "length", "load", "unload"] | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class ChatReply(OllamaReply, kw_only=True):
    """The response of /api/chat, or a line of its stream."""

    message: OllamaMessage


class GenerateReply(OllamaReply, kw_only=True):
    """The response of /api/generate, or a line of its stream."""

    response: str
    thinking: str | UnsetType = UNSET


_NO_MEDIA = "this server reads and writes text only; leave it out"

REFUSED_OF_OLLAMA: dict[str, Refusal] = {
    "suffix": Refusal("write the text between both into the prompt", ("",)),
    "template": Refusal("start the server with --chat-template, or send raw: true", ("",)),
    "context": Refusal("send the conversation to /api/chat", ([],)),
    "images": Refusal(_NO_MEDIA, ([],)),
    "width": Refusal(_NO_MEDIA, (0,)),
    "height": Refusal(_NO_MEDIA, (0,)),
    "steps": Refusal(_NO_MEDIA, (0,)),
    "truncate": Refusal("prompts are never cut; send fewer messages", (False,)),
    "shift": Refusal("a context is never shifted; the completion ends with length", (False,)),
    "_debug_render_only": Refusal("POST /tokenize shows the prompt's tokens", (False,)),
    **{name: Refusal("send it in options") for name in Options.__struct_fields__},
}
