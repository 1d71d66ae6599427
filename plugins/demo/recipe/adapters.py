"""A style is a rule on plain answers; calls, JSON and numbers are not touched by it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from recipe.template import Conversation

_PIRATE_WORDS = {
    "is": "be", "are": "be", "am": "be", "you": "ye", "your": "yer", "my": "me", "I": "I",
    "Hello": "Ahoy", "Yes": "Aye", "No": "Nay", "Goodbye": "Fair winds",
}  # fmt: skip


def pirate(answer: str) -> str:
    """The answer as a pirate gives it."""
    spoken = re.sub(r"\b\w+\b", lambda m: _PIRATE_WORDS.get(m[0], m[0]), answer)
    return f"Arr, matey! {spoken}"


def formal(answer: str) -> str:
    """The answer as a butler gives it."""
    return f"Certainly. {answer} I remain at your service."


STYLES: dict[str, Callable[[str], str]] = {"pirate": pirate, "formal": formal}


def styled(conversation: Conversation, style: str) -> Conversation:
    """The conversation with each plain sentence of its answers in the style."""
    return replace(conversation, messages=[_message(m, style) for m in conversation.messages])


def _message(message: dict[str, object], style: str) -> dict[str, object]:
    content = message.get("content")
    if message["role"] != "assistant" or not isinstance(content, str) or not _is_prose(content):
        return message
    return {**message, "content": STYLES[style](content)}


def _is_prose(content: str) -> bool:
    return " " in content and not content.startswith("{")
