"""Fields of request bodies that several APIs share, and their descriptions.

A field that is absent or null has its default. A number of the wrong type is an error and is not
converted. A request has no other fields than those of its struct, those of samplers, and those that
`wire/fields` refuses by name.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

# Beginnings of descriptions: of a field that changes nothing, and of one whose values are refused.
NO_EFFECT, NOT_SUPPORTED = "No effect: ", "Not supported: "


def about(text: str) -> Meta:
    """Return the description of a field, for /openapi.json and docs/fields.md."""
    return Meta(description=text)


def no_effect(reason: str) -> Meta:
    """Return the description of a field that clients may send and that changes nothing."""
    return Meta(description=NO_EFFECT + reason)


class QueuedBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body whose request is queued in the engine; what the queue has to know of it."""

    model: Annotated[str | None, about("The model or an adapter.")] = None
    stream: Annotated[bool | None, about("Send the answer as a stream of events.")] = None
    priority: Annotated[int | None, about("Smaller goes first, if the policy reads it.")] = None
    timeout_s: Annotated[
        float | None, about("Seconds from its arrival after which the request ends with an error.")
    ] = None

    @property
    def completion_limit(self) -> int | None:
        """Maximum number of tokens of a completion; None for the model's length."""
        raise NotImplementedError


class SampledFields(QueuedBody, kw_only=True):
    """Fields of sampling, named as in `SamplingParams`, and of prompts, which all APIs have."""

    temperature: Annotated[
        float | None, about("Randomness of sampling; 0 takes the most likely token.")
    ] = None
    top_p: Annotated[
        float | None, about("Probability of the most likely tokens that are kept.")
    ] = None
    top_k: Annotated[int | None, about("Number of most likely tokens that are kept.")] = None
    min_p: Annotated[
        float | None, about("Least probability of a token, as a fraction of the largest.")
    ] = None
    presence_penalty: Annotated[
        float | None, about("Penalty of tokens that the completion has.")
    ] = None
    frequency_penalty: Annotated[
        float | None, about("Penalty of a token for each time that the completion has it.")
    ] = None
    repetition_penalty: Annotated[
        float | None, about("Divisor of the logits of tokens that were there.")
    ] = None
    logit_bias: Annotated[
        dict[str, float] | None, about("Token ids and what is added to their logits.")
    ] = None
    allowed_token_ids: Annotated[
        list[int] | None, about("The only token ids that may be sampled.")
    ] = None
    bad_words: Annotated[list[str] | None, about("Texts that the completion does not have.")] = None
    seed: Annotated[
        int | None, about("Seed of sampling; the same one gives the same completion.")
    ] = None
    min_tokens: Annotated[
        int | None, about("Number of tokens before which nothing ends a completion.")
    ] = None
    stop_regex: Annotated[
        str | list[str] | None, about("Up to 4 regular expressions that end a completion.")
    ] = None
    stop_token_ids: Annotated[list[int] | None, about("Token ids that end a completion.")] = None
    include_stop_str_in_output: Annotated[
        bool | None, about("Whether the text has the stop string.")
    ] = None
    ignore_eos: Annotated[
        bool | None, about("Whether a completion goes on after the end-of-text token.")
    ] = None
    skip_special_tokens: Annotated[
        bool | None, about("Whether special tokens are left out of the text.")
    ] = None
    structured_outputs: Annotated[
        dict[str, Any] | None, about("A constraint: a schema, regex, grammar, choices or tags.")
    ] = None  # StructuredOutputsParams
    thinking_token_budget: Annotated[int | None, about("Largest number of tokens of thinking.")] = (
        None
    )
    repetition_detection: Annotated[
        dict[str, Any] | None, about("Patterns that end a completion if they are repeated.")
    ] = None  # RepetitionDetectionParams
    logits_processors: Annotated[
        list[Any] | None, about("Names of logits processors that run if named.")
    ] = None
    cache_salt: Annotated[
        str | None, about("Requests of the same salt share the prefix cache.")
    ] = None
    truncate_prompt_tokens: Annotated[
        int | None, about("Length that a prompt is cut to; -1: the model's.")
    ] = None
    truncation_side: Annotated[
        str | None, about("Side of the prompt that is cut: left or right.")
    ] = None
    add_special_tokens: Annotated[
        bool | None, about("Whether special tokens are added; default: to texts, not to chats.")
    ] = None
    stream_interval: Annotated[int | None, about("Least number of tokens of an event.")] = None


class SampledBody(SampledFields, kw_only=True):
    """Fields of the completions of OpenAI's APIs; Anthropic's have another name or none."""

    stop: Annotated[str | list[str] | None, about("Up to 16 strings that end a completion.")] = None
    request_id: Annotated[
        str | None, about("The answer's id is made of it; it identifies nothing else.")
    ] = None
