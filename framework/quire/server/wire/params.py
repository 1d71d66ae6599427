"""Conversion of a body to `SamplingParams`, which has the defaults of absent fields."""

from typing import Any

from quire.errors import InvalidRequestError
from quire.sampling_params import SamplingParams, StructuredOutputsParams
from quire.server.wire.bodies import convert
from quire.server.wire.protocol import SamplingBody

_SAME_NAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "stop", "stop_token_ids",
    "include_stop_str_in_output", "ignore_eos", "skip_special_tokens",
)  # fmt: skip
MAX_STOP_TOKEN_IDS = 256


def sampling_params(
    body: SamplingBody,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    structured_outputs: StructuredOutputsParams | None,
    extra_args: dict[str, Any],
) -> SamplingParams:
    """Return the sampling parameters of a request.

    Args:
        body: Body of the request.
        max_tokens: Maximum number of tokens to generate; None for the model's length.
        logprobs: Number of candidates per position; None for no log probabilities.
        prompt_logprobs: Number of candidates per position of the prompt; None for none.
        structured_outputs: Constraint on the completion.
        extra_args: Fields that sampler plugins declare.

    Raises:
        InvalidRequestError: A value is out of range.
    """
    given = {name: getattr(body, name) for name in _SAME_NAME}  # fields of our own struct
    if len(body.stop_token_ids or ()) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequestError(
            f"stop_token_ids takes at most {MAX_STOP_TOKEN_IDS} ids", param="stop_token_ids"
        )
    return SamplingParams(
        **{name: value for name, value in given.items() if value is not None},
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured_outputs=structured_outputs,
        extra_args=extra_args,
    )


def prompt_parts(
    prompt: str | list[int], body: SamplingBody, add_special_tokens: bool
) -> dict[str, Any]:
    """Return a prompt as the dict that the frontend accepts and checks."""
    parts: dict[str, Any] = {"prompt_token_ids": prompt}
    if isinstance(prompt, str):
        parts = {"prompt": prompt, "add_special_tokens": add_special_tokens}
    if body.cache_salt is not None:
        parts["cache_salt"] = body.cache_salt
    return parts


def response_constraint(response_format: dict[str, Any] | None) -> StructuredOutputsParams | None:
    """Return the constraint that OpenAI's `response_format` describes.

    Raises:
        InvalidRequestError: Its type is not text, json_object or json_schema, or has no schema.
    """
    if response_format is None:
        return None
    match response_format.get("type"):
        case "text":
            return None
        case "json_object":
            return StructuredOutputsParams(json_object=True)
        case "json_schema":
            return StructuredOutputsParams(json=_schema(response_format))
        case other:
            raise InvalidRequestError(
                "response_format.type must be text, json_object or json_schema, "
                f"got {other!r:.100}",
                param="response_format.type",
            )


def constraint_field(response_format: dict[str, Any] | None) -> str:
    """Return the name of the field that sets the constraint, if there is one."""
    return "structured_outputs" if response_format is None else "response_format"


def one_constraint(*constraints: StructuredOutputsParams | None) -> StructuredOutputsParams | None:
    """Return the one constraint that is given; None if there is none.

    Raises:
        InvalidRequestError: Several are given.
    """
    given = [constraint for constraint in constraints if constraint is not None]
    if len(given) > 1:
        raise InvalidRequestError(
            "response_format, structured_outputs and a forced tool call exclude each other; "
            "send one of them",
            param="response_format",
        )
    return given[0] if given else None


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


def _schema(response_format: dict[str, Any]) -> dict[str, Any]:
    wrapper = convert(
        response_format.get("json_schema"), dict[str, Any], "response_format.json_schema"
    )
    if "schema" not in wrapper:
        raise InvalidRequestError(
            "response_format.json_schema has no field schema",
            param="response_format.json_schema.schema",
        )
    return convert(wrapper["schema"], dict[str, Any], "response_format.json_schema.schema")
