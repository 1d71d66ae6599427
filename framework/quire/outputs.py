"""What a caller of `LLM` and `AsyncEngine` sees. The names are those that users of vLLM know."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quire.messages import FinishReason


class LoRARequest(msgspec.Struct, frozen=True):
    """Ask for an adapter: a name to call it by, and where it lies.

    `lora_int_id` is accepted as in vLLM and not needed: adapters are told apart by content.
    """

    lora_name: str
    lora_int_id: int = 0
    lora_path: str = ""


class Logprob(msgspec.Struct, frozen=True):
    """One token that could stand at a position.

    Attributes:
        logprob: Its log probability by the model: raw, before temperature, filters, masks and every
            other sampling step.
        rank: Its place by that among all tokens, from 1; None where it was not asked for.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A call that the model wrote; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One answer.

    Attributes:
        index: Which of the n answers.
        text: The whole answer; for `chat` without thinking and calls, which stand beside it.
        logprobs: For each token, the candidates by token id, the chosen one first; raw, see
            `Logprob`.
        stop_reason: The stop string or stop token id that ended it; None for end-of-text.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = []


PromptLogprobs = list[Mapping[int, Logprob] | None]


class RequestOutput(msgspec.Struct, kw_only=True):
    """All answers to one prompt.

    Attributes:
        prompt_logprobs: For each token of the prompt, the candidates by token id, the prompt's own
            token first, each a dict; None for the first token, which nothing predicts. None if not
            asked for.
        num_cached_tokens: Prompt tokens that the first answer found in the prefix cache; the
            others share its prompt.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: PromptLogprobs | None = None
    finished: bool = True
    num_cached_tokens: int = 0
    lora_request: LoRARequest | None = None


class Delta(msgspec.Struct, kw_only=True):
    """What one step added to one answer. Texts joined are the answer, character by character.

    Attributes:
        prompt_logprobs: Of the prompt tokens that came next, as in `RequestOutput`, but as compact
            mappings and no dicts; only the first of n answers brings them. A long prompt's come in
            several deltas without any text.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: PromptLogprobs | None = None


Prompt = str | list[int] | dict[str, Any]  # a dict has "prompt" or "prompt_token_ids"
Messages = Sequence[Mapping[str, Any]]  # a conversation in OpenAI's shape
