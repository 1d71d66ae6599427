"""Conversion of a body to `SamplingParams`, which has the defaults of absent fields."""

import re
from typing import Any, Literal

from quire.errors import InvalidRequestError
from quire.frontend.random_bytes import random_bytes
from quire.frontend.unknown_fields import UnknownFields
from quire.sampling_params import (
    BeamSearchParams,
    RepetitionDetectionParams,
    SamplingParams,
    StructuredOutputsParams,
)
from quire.server.wire.constraint import constraint_of
from quire.server.wire.protocol import SamplingBody

StreamUsage = Literal["none", "last", "all"]

_REQUEST_ID = re.compile(r"[!-~]{1,128}")
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
    unknown: UnknownFields,
    forced_call: StructuredOutputsParams | None = None,
    strict_calls: StructuredOutputsParams | None = None,
) -> SamplingParams | BeamSearchParams:
    """Return the parameters of a request: of sampling, or of a beam search.

    Args:
        body: Body of the request.
        max_tokens: Maximum number of tokens to generate; None for the model's length.
        logprobs: Number of candidates per position; None for no log probabilities.
        prompt_logprobs: Number of candidates per position of the prompt; None for none.
        extra_args: Fields that sampler plugins declare.
        unknown: What happens to fields that do not exist.
        forced_call: Constraint that forces a tool call.
        strict_calls: Constraint of calls in free text; any other constraint allows no calls.

    Raises:
        InvalidRequestError: A value is out of range, or there are several constraints.
    """
    constraint = forced_call
    if body.response_format is not None or body.structured_outputs is not None:
        constraint = constraint_of(body, unknown, forced_call)
    given = {name: getattr(body, name) for name in _SAME_NAME}  # fields of our own struct
    if body.repetition_detection is not None:
        given["repetition_detection"] = _repetition(body.repetition_detection, unknown)
    params = SamplingParams(
        **{name: value for name, value in given.items() if value is not None},
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        flat_logprobs=True,  # converted once, to JSON
        structured_outputs=strict_calls if constraint is None else constraint,
        extra_args=extra_args,
    )
    return _beam_search_params(params, body) if body.use_beam_search else _sampled(params, body)


def _repetition(given: dict[str, Any], unknown: UnknownFields) -> dict[str, Any]:
    known = RepetitionDetectionParams.__struct_fields__
    unknown.check(given, known, "repetition_detection")
    return {name: value for name, value in given.items() if name in known}


def _sampled(params: SamplingParams, body: SamplingBody) -> SamplingParams:
    """Return the parameters of sampling; those of beam searches must have their defaults."""
    for name, neutral in (("length_penalty", 1), ("early_stopping", False)):
        if getattr(body, name) not in (None, neutral):
            raise InvalidRequestError(f"{name} needs use_beam_search: true", param=name)
    if body.stream and params.best_of is not None:
        raise InvalidRequestError(
            "best_of cannot be streamed: the best completions are known once all have ended; leave "
            "out stream, or send n",
            param="best_of",
        )
    return params


def _beam_search_params(params: SamplingParams, body: SamplingBody) -> BeamSearchParams:
    """Return the parameters of a beam search; those of sampling must have their defaults."""
    taken, neutral = BeamSearchParams.__struct_fields__, SamplingParams()
    for name in SamplingParams.__struct_fields__:
        is_taken = name in taken or name == "seed"  # nothing is random
        if not is_taken and getattr(params, name) != getattr(neutral, name):
            named = next(iter(params.extra_args)) if name == "extra_args" else name
            raise InvalidRequestError(
                f"{named} cannot be combined with use_beam_search: a beam search compares the "
                "model's own log probabilities; leave one of them out",
                param=named,
            )
    given = {name: getattr(params, name) for name in SamplingParams.__struct_fields__}
    own = {
        name: value
        for name in ("length_penalty", "early_stopping", "temperature")
        if (value := getattr(body, name)) is not None
    }
    same = {name: value for name, value in given.items() if name in taken}
    return BeamSearchParams(**same | {"temperature": 0.0} | own, beam_width=params.n)


def prompt_with_options(prompt: str | list[int], body: SamplingBody) -> dict[str, Any]:
    """Return a prompt as the dict that the frontend accepts and checks."""
    options: dict[str, Any] = {"prompt_token_ids": prompt}
    if isinstance(prompt, str):
        options = {"prompt": prompt, "add_special_tokens": body.add_special_tokens is not False}
    return options | prompt_options(body)


def prompt_options(body: SamplingBody) -> dict[str, Any]:
    """Return the fields of a body that belong to its prompt, as keys of the prompt's dict."""
    options: dict[str, Any] = {}
    for name in ("cache_salt", "truncate_prompt_tokens", "truncation_side"):
        if getattr(body, name) is not None:
            options[name] = getattr(body, name)
    return options


def response_id(prefix: str, request_id: str | None) -> str:
    """Return the id of a response: the client's behind a prefix such as `cmpl-`, or a new one.

    Raises:
        InvalidRequestError: The client's is not short and plain.
    """
    if request_id is None:
        return f"{prefix}{random_bytes.hex(14)}"
    if not _REQUEST_ID.fullmatch(request_id):
        raise InvalidRequestError(
            f"request_id must be 1 to 128 visible ASCII characters, got {request_id!r:.140}",
            param="request_id",
        )
    return f"{prefix}{request_id}"


def stream_usage(body: SamplingBody) -> StreamUsage:
    """Return which events of a stream have the token counts.

    Raises:
        InvalidRequestError: `stream_options` are given without `stream`, or contradict each other.
    """
    options = body.stream_options
    if options is None:
        return "none"
    if not body.stream:
        raise InvalidRequestError("stream_options needs stream: true", param="stream_options")
    if options.include_usage:
        return "all" if options.continuous_usage_stats else "last"
    if options.continuous_usage_stats:
        raise InvalidRequestError(
            "stream_options.continuous_usage_stats needs include_usage: true",
            param="stream_options.continuous_usage_stats",
        )
    return "none"
