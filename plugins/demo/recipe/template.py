"""Training renders the shipped chat template, so what is learned is what the engine will send."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHECKPOINT = Path(__file__).parent.parent / "quire_demo" / "checkpoint"
END_OF_TURN = "<|im_end|>\n"

Message = dict[str, Any]
Schema = dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """Messages in OpenAI's shape; every assistant message in it is a right answer."""

    messages: list[Message]
    tools: list[Schema] | None = None

    def text(self) -> str:
        """The whole conversation as the model sees it."""
        return render(self.messages, self.tools)

    def prompt(self) -> str:
        """All that stands before the last answer."""
        return render(self.messages[:-1], self.tools, add_generation_prompt=True)

    def answer(self) -> str:
        """The last answer, as the model should write it."""
        return self.text()[len(self.prompt()) : -len(END_OF_TURN)]


@dataclass(frozen=True)
class RawText:
    """Text that no template has touched."""

    beginning: str
    continuation: str

    def text(self) -> str:
        """All of it."""
        return self.beginning + self.continuation

    def prompt(self) -> str:
        """What is given."""
        return self.beginning

    def answer(self) -> str:
        """What the model should write."""
        return self.continuation


Lesson = Conversation | RawText


def say(content: str) -> Message:
    """A plain message of the assistant."""
    return {"role": "assistant", "content": content}


def render(
    messages: list[Message], tools: list[Schema] | None = None, add_generation_prompt: bool = False
) -> str:
    """Render messages and tools with the template of the checkpoint."""
    return _template().render(
        messages=messages, tools=tools, add_generation_prompt=add_generation_prompt
    )


@cache
def _template() -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _to_json
    return environment.from_string((CHECKPOINT / "chat_template.jinja").read_text("utf-8"))


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
