"""Inputs and outputs of `LLM` and `AsyncEngine`. The names follow vLLM."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from quire.messages import FinishReason


class LoRARequest(msgspec.Struct, frozen=True):
    """The adapter of a request: its name and the path of its files.

    `lora_int_id` is accepted for compatibility with vLLM and not used: adapters are identified by
    their content.
    """

    lora_name: str
    lora_int_id: int = 0
    lora_path: str = ""


class Logprob(msgspec.Struct, frozen=True):
    """The log probability of one candidate token at a position.

    Attributes:
        logprob: Log probability by the model: raw, before temperature, filters, masks and every
            other logits processor, unless the engine has another `logprobs_mode`.
        rank: Rank among all tokens by log probability, from 1; None where it was not requested.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A tool call that the model wrote.

    Attributes:
        id: Id of the call.
        name: Name of the tool.
        arguments: JSON text of an object; of a completion that a limit has ended, the last call may
            have the beginning of one.
    """

    id: str
    name: str
    arguments: str


SampleLogprobs = Sequence[Mapping[int, Logprob]]


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One completion.

    Attributes:
        index: Index among the n completions.
        text: The whole completion; for `chat` without reasoning and tool calls, which have their
            own fields.
        logprobs: For each token, the candidates by token id, the chosen one first; see `Logprob`.
            Each is a dict, with `flat_logprobs` a compact mapping.
        stop_reason: The stop string or stop token id that ended it; None for end-of-text.
        cumulative_logprob: Sum of the log probabilities of its tokens; None if they were neither
            requested nor needed.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: SampleLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    cumulative_logprob: float | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = []


PromptLogprobs = list[Mapping[int, Logprob] | None]


class RequestOutput(msgspec.Struct, kw_only=True):
    """All completions of one prompt.

    Attributes:
        prompt_logprobs: For each token of the prompt, the candidates by token id, the prompt's own
            token first, each a dict, with `flat_logprobs` a compact mapping; None for the first
            token, which has no prediction. None if not requested.
        num_cached_tokens: Number of prompt tokens that the first completion found in the prefix
            cache; the other completions share its prompt.
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
    """The part of a completion that one step added. The joined texts are the whole completion.

    Attributes:
        prompt_logprobs: Log probabilities of the next prompt tokens, as in `RequestOutput`, but as
            compact mappings instead of dicts. Only the first of n completions has them. Those of a
            long prompt are spread over several deltas without text.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: SampleLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    prompt_logprobs: PromptLogprobs | None = None


Prompt = str | list[int] | dict[str, Any]  # a dict has "prompt" or "prompt_token_ids"
Messages = Sequence[Mapping[str, Any]]  # a conversation in OpenAI's format
