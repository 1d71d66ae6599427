"""The prompt of a conversation: what a body asks of the chat template."""

from collections.abc import Iterator, Sequence
from typing import Any

from quire.errors import InvalidRequestError, PromptTooLongError
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.chat.templates.rendered_prompt import RenderedPrompt
from quire.frontend.unknown_fields import UnknownFields
from quire.server.wire.protocol import ChatBody, TokenizeBody
from quire.server.wire.thinking_switches import effort_variables

RENDERED = 8  # bytes in the time of tokenizing one


def rendered_chat(
    frontend: AsyncFrontend,
    body: ChatBody | TokenizeBody,
    tools: Sequence[dict[str, Any]],
    unknown: UnknownFields,
    *,
    may_be_too_long: bool = False,
) -> RenderedPrompt:
    """Return the prompt of a body with messages.

    Args:
        frontend: Frontend whose template renders it.
        body: Body of the request.
        tools: Tools that the template shows the model.
        unknown: What happens to fields that do not exist.
        may_be_too_long: Whether a prompt is rendered that the model cannot take.

    Raises:
        InvalidRequestError: The messages, or what else the template gets, are invalid.
        ChatTemplateError: The template cannot render them.
        PromptTooLongError: There are more messages than the model takes tokens, or the texts of
            users alone have more.
    """
    messages = body.messages or []
    if not may_be_too_long:
        _check_length(frontend, body, messages)
    return frontend.chat_template.render(
        messages,
        list(tools) or None,
        _template_kwargs(body),
        add_generation_prompt=_adds_generation_prompt(body),
        continue_final_message=bool(body.continue_final_message),
        finds_opening=frontend.completion_parsers.reads_reasoning and not may_be_too_long,
        unknown=unknown,
    )


def _check_length(
    frontend: AsyncFrontend, body: ChatBody | TokenizeBody, messages: Sequence[dict[str, Any]]
) -> None:
    """Refuse a conversation that is too long, before it is rendered.

    Raises:
        PromptTooLongError: It is.
    """
    _check_number(len(messages), frontend.max_model_len)
    if not (isinstance(body, ChatBody) and body.truncate_prompt_tokens):
        frontend.intake.prompts.check_texts(_texts_of_users(messages), "messages")


def _check_number(num_messages: int, max_model_len: int) -> None:
    """Refuse a conversation that is too long whatever its texts are: a message has a token.

    Raises:
        PromptTooLongError: It is.
    """
    if num_messages > max_model_len:
        raise PromptTooLongError(
            f"the conversation has {num_messages} messages, and this model takes {max_model_len} "
            "tokens, prompt and completion together",
            param="messages",
        )


def _texts_of_users(messages: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the texts that are wholly in the prompt; templates may leave out parts of others."""
    for message in messages:
        text = message.get("content")
        if message.get("role") == "user" and isinstance(text, str):
            yield text.strip()  # templates may do so


def _adds_generation_prompt(body: ChatBody | TokenizeBody) -> bool:
    """Whether the prompt ends with the start of the assistant's turn.

    Raises:
        InvalidRequestError: It should, and also end within the last message.
    """
    if not body.continue_final_message:
        return body.add_generation_prompt is not False
    if body.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message excludes add_generation_prompt: the prompt ends within the "
            "last message; leave one of them out",
            param="continue_final_message",
        )
    return False


def _template_kwargs(body: ChatBody | TokenizeBody) -> dict[str, Any]:
    """Return further variables for the chat template, which checks them."""
    return effort_variables(body.reasoning_effort) | (body.chat_template_kwargs or {})
