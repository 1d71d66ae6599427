"""The option `continue_final_message`: a prompt that ends within its last message.

The last message is rendered with a mark behind its text, and the prompt is cut there. As in
transformers, blanks at the end of the text are kept only if the template keeps them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from quire.errors import ChatTemplateError, InvalidRequestError
from quire.frontend.chat.templates.conversation import Message
from quire.frontend.chat.templates.rendered_prompt import RenderedPrompt

END_MARK = "QUIRE_END_OF_FINAL_MESSAGE "  # with a blank, which shows whether the template trims


def with_end_mark(
    messages: Sequence[Mapping[str, Any]], normal: Sequence[Message]
) -> list[Message]:
    """Return messages of which the last has a mark behind its text.

    Args:
        messages: Messages as the client sent them.
        normal: The same in the format of chat templates.

    Raises:
        InvalidRequestError: The last one has no text.
    """
    if messages[-1].get("content") is None:
        raise InvalidRequestError(
            "continue_final_message needs a last message with content", param="messages"
        )
    return marked_at_end(normal)


def marked_at_end(normal: Sequence[Message]) -> list[Message]:
    """Return messages of which the last has a mark behind its text."""
    return [*normal[:-1], normal[-1] | {"content": normal[-1]["content"] + END_MARK}]


def cut_at_end_mark(rendered: RenderedPrompt, normal: Sequence[Message]) -> RenderedPrompt:
    """Return a prompt up to the mark.

    Raises:
        ChatTemplateError: The template does not write the text of the last message as it is.
    """
    end = rendered.text.rfind(END_MARK.strip())
    text = rendered.text[: max(end, 0)]
    if not rendered.text.startswith(END_MARK, end):
        text = text.rstrip()
    continued = normal[-1]["content"].strip()
    if end < 0 or continued not in text:
        raise ChatTemplateError(
            "the chat template does not write the last message as it is, so it cannot be "
            "continued; leave out continue_final_message",
            param="continue_final_message",
        )
    breaks = tuple(at for at in rendered.breaks if at < len(text))
    return RenderedPrompt(text, breaks, text[text.rfind(continued) :])
