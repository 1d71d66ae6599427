"""Conversion of a request for a response to one for a chat, and of its errors back."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from quire.errors import InvalidRequestError, RequestError
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.chat.shared_fields import SharedFields
from quire.server.routes.responses.function_tools import chat_choice, chat_tools
from quire.server.routes.responses.input_items import Item, messages_of
from quire.server.routes.responses.mcp.offered_tools import NO_OFFERED_TOOLS, OfferedTools
from quire.server.routes.responses.mcp.requested_server import MCP
from quire.server.wire.protocol import ChatBody
from quire.server.wire.responses import INCLUDABLE, LOGPROBS, ResponseBody

_CONVERTED = {"tools", "tool_choice", "metadata", "store", "top_logprobs", "stream_options"}
_SHARED = SharedFields(ResponseBody, _CONVERTED)
_MAX_METADATA, _MAX_METADATA_KEY, _MAX_METADATA_VALUE = 16, 64, 512
_SCHEMA = ("name", "description", "schema", "strict")
_FORMATS = {"text": (), "json_object": (), "json_schema": _SCHEMA}
_LIMIT = re.compile(r"\bmax_(completion_)?tokens\b")
_TOOL = re.compile(r"tools\[(\d{1,4})\]")
_NUMBERS = ("max_tokens", "max_completion_tokens", "min_tokens", "logprobs")  # quote no texts
_NAMES = (  # how paths of a chat's fields begin -> those of a response's
    (_LIMIT, "max_output_tokens"),
    (re.compile(r"logprobs$"), "top_logprobs"),
    (re.compile(r"structured_outputs and response_format\b"), "structured_outputs and text.format"),
    (re.compile(r"response_format(\.json_schema)?\b"), "text.format"),
    (re.compile(r"(messages\b[^ :]*|prompt$)"), "input"),  # items are checked before
    (re.compile(r"reasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"tool_choice\.allowed_tools\b"), "tool_choice"),
    (re.compile(r"(tools\[\d+\])\.custom\.format\.grammar\b"), r"\1.format"),
    (re.compile(r"(tools\[\d+\])\.(function|custom)\b"), r"\1"),
)


def chat_body(
    body: ResponseBody,
    previous: Sequence[Item],
    items: Sequence[Item],
    unknown: UnknownFields,
    offered: OfferedTools = NO_OFFERED_TOOLS,
    turns: Sequence[Sequence[Item]] = (),
) -> ChatBody:
    """Return a request as one for a chat.

    Args:
        body: Body of the request.
        previous: Items of the responses that it continues.
        items: Its own items.
        unknown: What happens to fields that do not exist.
        offered: Tools of tool servers.
        turns: Items of each turn in the response itself so far.

    Raises:
        InvalidRequestError: Something is not supported; `param` names it.
        UnknownFieldError: An object has a field that does not exist.
    """
    _check(body)
    chat = ChatBody(
        **_SHARED.given(body),
        messages=messages_of(
            [*previous, *items],
            body.instructions,
            unknown,
            len(previous),
            turns,
            offered.function_names,
        ),
        max_completion_tokens=body.max_output_tokens,
        logprobs=shows_logprobs(body) or None,
        top_logprobs=body.top_logprobs if shows_logprobs(body) else None,
    )
    if body.tools is not None or body.tool_choice is not None:
        functions = chat_tools(body.tools, unknown)
        chat.tools = None if functions is None else functions + offered.chat_tools()
        choice = offered.choice_of_functions(body.tool_choice, unknown)
        chat.tool_choice = chat_choice(choice, unknown)
    if body.text is not None and body.text.format is not None:
        chat.response_format = _response_format(body.text.format, unknown)
    if body.reasoning is not None:
        chat.reasoning_effort = body.reasoning.effort
    if body.truncation == "auto" and body.truncate_prompt_tokens is None:
        chat.truncate_prompt_tokens = -1
    return chat


def shows_logprobs(body: ResponseBody) -> bool:
    """Whether the response has log probabilities."""
    return LOGPROBS in (body.include or ())


def places_of_tools(body: ResponseBody, offered: OfferedTools) -> list[int]:
    """Return the index that each tool of the chat has in the request."""
    sent = enumerate(body.tools or ())
    return [i for i, tool in sent if tool.get("type") != MCP] + offered.places


@contextmanager
def errors_as_sent(places: Sequence[int] = ()) -> Iterator[None]:
    """Name fields in errors as the client has sent them.

    A message names its field at its beginning; what it quotes behind stays as it is.

    Args:
        places: Index that each tool of the chat has in the request; none: its own.
    """
    try:
        yield
    except RequestError as error:
        if error.param is not None:
            message = _as_sent(str(error), places)
            if error.param in _NUMBERS:
                message = _LIMIT.sub("max_output_tokens", message)
            error.args, error.param = (message, *error.args[1:]), _as_sent(error.param, places)
        raise


def _as_sent(text: str, places: Sequence[int]) -> str:
    """Return a text with the name that the client knows for the field that it begins with."""
    if (tool := _TOOL.match(text)) is not None and int(tool[1]) < len(places):
        text = f"tools[{places[int(tool[1])]}]{text[tool.end() :]}"
    for pattern, name in _NAMES:
        if (found := pattern.match(text)) is not None:
            return found.expand(name) + text[found.end() :]
    return text


def check_include(include: Sequence[str] | None) -> None:
    """Check what a request wants to see.

    Raises:
        InvalidRequestError: The API has no such value.
    """
    for i, name in enumerate(include or ()):
        if name not in INCLUDABLE:
            raise InvalidRequestError(
                f"include[{i}] must be one of {', '.join(INCLUDABLE)}; got {name!r:.80}",
                param=f"include[{i}]",
            )


def _check(body: ResponseBody) -> None:
    if body.top_logprobs and not shows_logprobs(body):
        raise InvalidRequestError(
            f'top_logprobs needs include: ["{LOGPROBS}"]', param="top_logprobs"
        )
    check_include(body.include)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("stream_options needs stream: true", param="stream_options")
    if body.metadata:
        _check_metadata(body.metadata)


def _check_metadata(metadata: dict[str, str]) -> None:
    if (
        len(metadata) > _MAX_METADATA
        or max(map(len, metadata)) > _MAX_METADATA_KEY
        or max(map(len, metadata.values())) > _MAX_METADATA_VALUE
    ):
        raise InvalidRequestError(
            f"metadata takes up to {_MAX_METADATA} keys of up to {_MAX_METADATA_KEY} characters, "
            f"with values of up to {_MAX_METADATA_VALUE}",
            param="metadata",
        )


def _response_format(given: dict[str, Any], unknown: UnknownFields) -> dict[str, Any]:
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _FORMATS:
        raise InvalidRequestError(
            f"text.format.type must be one of {', '.join(_FORMATS)}; got {kind!r:.80}",
            param="text.format.type",
        )
    set_fields = {name: value for name, value in given.items() if value is not None}
    unknown.check(set_fields, ("type", *_FORMATS[kind]), "text.format")
    if kind != "json_schema":
        return {"type": kind}
    schema = {name: set_fields[name] for name in _SCHEMA if name in set_fields}
    return {"type": kind, "json_schema": schema}
