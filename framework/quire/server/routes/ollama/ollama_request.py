"""Translation of Ollama's requests to a chat body: options, messages, format and thinking."""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from quire.errors import InvalidRequestError
from quire.frontend.async_frontend import AsyncFrontend
from quire.server.routes.ollama.ollama_protocol import (
    OllamaBody,
    Options,
    SentCall,
    SentMessage,
)
from quire.server.wire.protocol import ChatBody
from quire.server.wire.thinking_switches import thinking_switches

EFFORTS = ("low", "medium", "high")
_OF_OPTIONS = {  # fields that have their names in a chat body, too
    "temperature", "top_k", "top_p", "min_p", "seed", "stop", "presence_penalty",
    "frequency_penalty",
}  # fmt: skip
_OF_SAMPLERS = {  # option -> field of a sampler, and the value that asks for nothing
    "typical_p": ("typical_p", 1),
    "mirostat": ("mirostat_mode", 0),
    "mirostat_tau": ("mirostat_tau", None),
    "mirostat_eta": ("mirostat_eta", None),
}
_NO_TIME = re.compile(r"[-+]?(0+(\.0*)?(h|m|s|ms|us|µs|ns)?)+")
_ONLY: dict[str, Any] = {
    "logits_all": False,
    "vocab_only": False,
    "embedding_only": False,
    "tfs_z": 1,
    "penalize_newline": True,
}


def chat_body(
    body: OllamaBody,
    messages: list[dict[str, Any]],
    frontend: AsyncFrontend,
    tools: list[dict[str, Any]] | None = None,
) -> ChatBody:
    """Return what a request asks for, as a chat body.

    Args:
        body: Body of the request.
        messages: Messages in OpenAI's format.
        frontend: Frontend that serves the request.
        tools: Tools in OpenAI's format.

    Raises:
        InvalidRequestError: A value is not supported.
    """
    options = body.options or Options()
    _check_only(options)
    variables, effort = _thinking(body.think, frontend)
    seed = options.seed
    return ChatBody(
        model=served_name(frontend, body.model),
        stream=body.stream,
        priority=body.priority,
        timeout_s=body.timeout_s,
        messages=messages,
        tools=tools,
        logprobs=body.logprobs,
        top_logprobs=body.top_logprobs,
        max_tokens=body.completion_limit,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        seed=None if seed is None or seed < 0 else seed,
        stop=options.stop,
        structured_outputs=_constraint(body.format),
        chat_template_kwargs=variables,
        reasoning_effort=effort,
        **_penalties(options),
    )


def sampler_fields(options: Options | None, of_samplers: Collection[str]) -> dict[str, Any]:
    """Return the options that samplers read, by the names of their fields.

    Args:
        options: Options of a request.
        of_samplers: Fields that the samplers of the engine read.

    Raises:
        InvalidRequestError: An option is set that none of them reads.
    """
    found: dict[str, Any] = {}
    for name, (field, neutral) in _OF_SAMPLERS.items():
        value = None if options is None else getattr(options, name)  # a field of our own struct
        if value is None:
            continue
        if field in of_samplers:
            found[field] = value
        elif value != neutral:
            where = f"options.{name}"
            raise InvalidRequestError(f"no sampler in use reads {where}; leave it out", param=where)
    return found


def served_name(frontend: AsyncFrontend, name: str | None) -> str | None:
    """Return the name by which a model is served; the tag `latest` may be added or left out."""
    if name is None or not name:
        return None
    served = (frontend.model_name, *frontend.adapters)
    spellings = (name, name.removesuffix(":latest"), f"{name}:latest")
    return next((spelt for spelt in spellings if spelt in served), name)


def is_zero(keep_alive: object) -> bool:
    """Whether a duration is no time: a number of seconds, or a text such as `0s`."""
    if isinstance(keep_alive, str):
        return _NO_TIME.fullmatch(keep_alive) is not None
    return type(keep_alive) in (int, float) and keep_alive == 0


def translated_messages(messages: Sequence[SentMessage]) -> list[dict[str, Any]]:
    """Return messages in OpenAI's format.

    Raises:
        InvalidRequestError: A message has images.
    """
    return [_translated(each, f"messages[{i}]") for i, each in enumerate(messages)]


@contextmanager
def names_as_sent() -> Iterator[None]:
    """Name options in errors by their path."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param not in _OF_OPTIONS:
            raise
        raise InvalidRequestError(f"options.{error}", param=f"options.{error.param}") from None


def _check_only(options: Options) -> None:
    for name, only in _ONLY.items():
        value = getattr(options, name)  # a field of our own struct
        if value not in (None, only):
            raise InvalidRequestError(
                f"options.{name} is supported only as {str(only).lower()}; leave it out",
                param=f"options.{name}",
            )


def _penalties(options: Options) -> dict[str, Any]:
    """Return the penalties, whose window is all tokens or none.

    Raises:
        InvalidRequestError: The window is another one.
    """
    neutral = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
    given = {
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }
    active = [name for name, value in given.items() if value not in (None, neutral[name])]
    if options.repeat_last_n == 0:
        return {}
    if active and options.repeat_last_n not in (None, -1):
        raise InvalidRequestError(
            "options.repeat_last_n must be -1, or 0 for no penalties: penalties read the whole "
            "prompt and completion",
            param="options.repeat_last_n",
        )
    return given


def _constraint(form: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the structured-output constraint of `format`.

    Raises:
        InvalidRequestError: It is another text than "json".
    """
    if isinstance(form, dict):
        return {"json": form}
    if form == "json":
        return {"json_object": True}
    if form:
        raise InvalidRequestError(
            f'format must be "json" or a JSON schema, got {form[:100]!r}', param="format"
        )
    return None


def _thinking(
    think: bool | str | None, frontend: AsyncFrontend
) -> tuple[dict[str, Any] | None, str | None]:
    """Return the template's variables, and the effort, that `think` asks for.

    Raises:
        InvalidRequestError: The model cannot think, or the level is unknown.
    """
    if think is None or think is False:
        return (thinking_switches(False) if think is False else None), None
    if isinstance(think, str) and think not in EFFORTS:
        raise InvalidRequestError(
            f"think must be true, false or one of {', '.join(EFFORTS)}; got {think[:100]!r}",
            param="think",
        )
    if not frontend.completion_parsers.reads_reasoning:
        raise InvalidRequestError(
            f"{frontend.model_name!r} does not support thinking here; leave think out, or start "
            "the server with --reasoning-parser NAME",
            param="think",
        )
    return thinking_switches(True), think if isinstance(think, str) else None


def _translated(message: SentMessage, where: str) -> dict[str, Any]:
    if message.images:
        raise InvalidRequestError(
            f"{where}.images is not supported; this server reads text only", param=f"{where}.images"
        )
    made = {
        "role": message.role,
        "content": message.content or "",
        "reasoning_content": message.thinking,
        "name": message.tool_name,
        "tool_call_id": message.tool_call_id,
        "tool_calls": [_translated_call(call) for call in message.tool_calls or ()] or None,
    }
    return {name: value for name, value in made.items() if value is not None}


def _translated_call(call: SentCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"type": "function", "function": function} | ({"id": call.id} if call.id else {})
