"""Conversion of a body to `SamplingParams`, which has the defaults of absent fields."""

from typing import Any

from quire.errors import InvalidRequestError
from quire.sampling_params import SamplingParams, StructuredOutputsParams
from quire.server.wire.constraint import constraint_of
from quire.server.wire.protocol import SamplingBody

MAX_STOP_TOKEN_IDS = 256
_CONVERTED = {"max_tokens", "prompt_logprobs", "structured_outputs"}
_SAME_NAME = tuple(
    name
    for name in SamplingParams.__struct_fields__
    if name in SamplingBody.__struct_fields__ and name not in _CONVERTED
)


def sampling_params(
    body: SamplingBody,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    extra_args: dict[str, Any],
    forced_call: StructuredOutputsParams | None = None,
) -> SamplingParams:
    """Return the sampling parameters of a request.

    Args:
        body: Body of the request.
        max_tokens: Maximum number of tokens to generate; None for the model's length.
        logprobs: Number of candidates per position; None for no log probabilities.
        prompt_logprobs: Number of candidates per position of the prompt; None for none.
        extra_args: Fields that sampler plugins declare.
        forced_call: Constraint that forces a tool call.

    Raises:
        InvalidRequestError: A value is out of range, or there are several constraints.
    """
    if len(body.stop_token_ids or ()) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequestError(
            f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids", param="stop_token_ids"
        )
    constraint = forced_call
    if body.response_format is not None or body.structured_outputs is not None:
        constraint = constraint_of(body, forced_call)
    given = {name: getattr(body, name) for name in _SAME_NAME}  # fields of our own struct
    return SamplingParams(
        **{name: value for name, value in given.items() if value is not None},
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured_outputs=constraint,
        extra_args=extra_args,
    )


def prompt_with_options(
    prompt: str | list[int], body: SamplingBody, add_special_tokens: bool
) -> dict[str, Any]:
    """Return a prompt as the dict that the frontend accepts and checks."""
    options: dict[str, Any] = {"prompt_token_ids": prompt}
    if isinstance(prompt, str):
        options = {"prompt": prompt, "add_special_tokens": add_special_tokens}
    if body.cache_salt is not None:
        options["cache_salt"] = body.cache_salt
    return options


def includes_usage(body: SamplingBody) -> bool:
    """Whether a stream ends with the token counts.

    Raises:
        InvalidRequestError: `stream_options` is given without `stream`.
    """
    if body.stream_options is None:
        return False
    if not body.stream:
        raise InvalidRequestError("stream_options needs stream: true", param="stream_options")
    return bool(body.stream_options.include_usage)
