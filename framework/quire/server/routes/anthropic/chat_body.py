"""Conversion of a body of Anthropic's API to that of a chat, which all routes share."""

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from quire.errors import InvalidRequestError
from quire.frontend.typed_value import convert
from quire.frontend.unknown_fields import UnknownFields
from quire.server.routes.anthropic.bodies import (
    AnyBody,
    CountTokensBody,
    MessagesBody,
    OutputConfig,
    ThinkingConfig,
)
from quire.server.routes.anthropic.conversation import chat_messages
from quire.server.routes.anthropic.tools import chat_tool, chat_tool_choice, custom_tools
from quire.server.routes.chat.chat_prompt import RENDERED
from quire.server.routes.chat.chat_turn import ChatTurns
from quire.server.routes.chat.shared_fields import SharedFields
from quire.server.wire.bodies import Body
from quire.server.wire.protocol import ChatBody
from quire.server.wire.thinking_switches import check_effort, thinking_switches

B = TypeVar("B", MessagesBody, CountTokensBody)

_CONVERTED = {"messages", "tools", "tool_choice", "chat_template_kwargs", "continue_final_message"}
_SHARED = {kind: SharedFields(kind, _CONVERTED) for kind in (MessagesBody, CountTokensBody)}
_THINKING_TYPES = ("enabled", "disabled", "adaptive")
_DISPLAYS = ("summarized", "omitted")
_REFUSED_OF_THINKING = {  # what only Anthropic's models do
    "between_tools": "texts between calls are text blocks; send disabled",
    "updates": "a model that runs here writes none; send summarized",
}


@dataclass(frozen=True, slots=True)
class Translated:
    """A body of Anthropic's API as that of a chat.

    Attributes:
        chat: Body of the chat.
        held_tools: Names of the tools whose calls are streamed once they are complete.
        shows_thinking: Whether the text of the reasoning is in the response.
    """

    chat: ChatBody
    held_tools: frozenset[str] = frozenset()
    shows_thinking: bool = True


async def translated_body(body: Body[B], turns: ChatTurns) -> Translated:
    """Return a body as that of a chat; raises what `translated` raises.

    Args:
        body: Body of a request.
        turns: Turns that the chat becomes one of.
    """
    limits_thinking = turns.frontend.intake.limits_thinking
    work = partial(translated, body.typed, turns.unknown, limits_thinking=limits_thinking)
    return await turns.frontend.lanes.run(body.num_bytes // RENDERED, work)


def translated(body: AnyBody, unknown: UnknownFields, *, limits_thinking: bool) -> Translated:
    """Return a body as that of a chat.

    Args:
        body: Body of a request.
        unknown: What happens to fields that do not exist.
        limits_thinking: Whether the engine can limit the reasoning of this model.

    Raises:
        InvalidRequestError: A field does not follow the API; `param` is its path.
    """
    messages = chat_messages(body.system, body.messages, unknown)
    chat = ChatBody(messages=messages, **_SHARED[type(body)].given(body))
    chat.continue_final_message = _continues(body, messages)
    chat.chat_template_kwargs = body.chat_template_kwargs
    held = _set_tools(chat, body, unknown)
    if body.output_config is not None:
        _set_output(chat, body.output_config, unknown)
    if body.thinking is not None:
        _set_thinking(chat, body.thinking, limits_thinking=limits_thinking)
    if isinstance(body, MessagesBody):
        chat.stop = body.stop_sequences
    shows = body.thinking is None or body.thinking.display != "omitted"
    return Translated(chat, held, shows)


def _continues(body: AnyBody, messages: list[dict[str, Any]]) -> bool:
    """Whether the completion continues the last message: a text of the assistant."""
    if body.continue_final_message is not None:
        return body.continue_final_message
    last = messages[-1]
    is_text = last["role"] == "assistant" and "tool_calls" not in last and bool(last["content"])
    return is_text and not body.add_generation_prompt


def _set_tools(chat: ChatBody, body: AnyBody, unknown: UnknownFields) -> frozenset[str]:
    """Set the tools and their choice; return the names of those whose calls are held."""
    if not body.tools and body.tool_choice is None:
        return frozenset()
    tools = custom_tools(body.tools or (), unknown)
    if tools:
        chat.tools = [chat_tool(tool) for tool in tools]
    if (choice := body.tool_choice) is not None:
        chat.tool_choice = chat_tool_choice(choice)
        if choice.disable_parallel_tool_use:
            chat.parallel_tool_calls = False
    return frozenset(tool.name for tool in tools if tool.eager_input_streaming is False)


def _set_output(chat: ChatBody, config: OutputConfig, unknown: UnknownFields) -> None:
    if config.task_budget is not None:
        raise InvalidRequestError(
            "output_config.task_budget is not supported; send max_tokens",
            param="output_config.task_budget",
        )
    if config.effort is not None:
        check_effort(config.effort, "output_config.effort")
    chat.reasoning_effort = config.effort
    if config.format is None:
        return
    where = "output_config.format"
    if config.format.get("type") != "json_schema":
        raise InvalidRequestError(
            f"{where}.type must be json_schema, got {config.format.get('type')!r:.50}",
            param=f"{where}.type",
        )
    unknown.check(config.format, ("type", "schema"), where)
    schema = convert(config.format.get("schema"), dict[str, Any], f"{where}.schema")
    chat.response_format = {"type": "json_schema", "json_schema": {"schema": schema}}


def _set_thinking(chat: ChatBody, config: ThinkingConfig, *, limits_thinking: bool) -> None:
    """Set the variables by which templates switch the reasoning, and its budget."""
    _check_thinking(config)
    if config.type != "adaptive":
        switches = thinking_switches(config.type == "enabled")
        chat.chat_template_kwargs = switches | (chat.chat_template_kwargs or {})
    if limits_thinking and chat.thinking_token_budget is None:
        chat.thinking_token_budget = config.budget_tokens


def _check_thinking(config: ThinkingConfig) -> None:
    _check_one_of(_THINKING_TYPES, config.type, "thinking.type")
    if config.type == "enabled" and (config.budget_tokens is None or config.budget_tokens < 1):
        raise InvalidRequestError(
            "thinking of type enabled needs budget_tokens of at least 1",
            param="thinking.budget_tokens",
        )
    if config.type != "enabled" and config.budget_tokens is not None:
        raise InvalidRequestError(
            f"thinking of type {config.type} has no budget_tokens; the type enabled has",
            param="thinking.budget_tokens",
        )
    if config.display is not None:
        _check_one_of(_DISPLAYS, config.display, "thinking.display")


def _check_one_of(known: tuple[str, ...], given: str, where: str) -> None:
    if given in known:
        return
    if given in _REFUSED_OF_THINKING:
        message = f"{where} {given!r} is not supported: {_REFUSED_OF_THINKING[given]}"
    else:
        message = f"{where} must be one of {', '.join(known)}, got {given!r:.50}"
    raise InvalidRequestError(message, param=where)
