"""Chat templates, rendered in Jinja's sandbox with the extensions of Hugging Face templates.

A template comes with a checkpoint, so it is not trusted: it cannot access Python internals, its
output is bounded, and any error that it raises becomes a `ChatTemplateError`.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from quire.errors import (
    ChatTemplateError,
    CheckpointCorruptError,
    InvalidRequestError,
    SettingsError,
)
from quire.frontend.chat.templates.conversation import (
    STRICT,
    Message,
    normalize_messages,
    normalize_tools,
)
from quire.frontend.chat.templates.final_message import (
    cut_at_end_mark,
    marked_at_end,
    with_end_mark,
)
from quire.frontend.chat.templates.marked_texts import MarkedTexts
from quire.frontend.chat.templates.opening import KnownOpenings, opening_of
from quire.frontend.chat.templates.prompt_call_ids import PromptCallId, as_sent, with_prompt_ids
from quire.frontend.chat.templates.rendered_prompt import RenderedPrompt
from quire.frontend.chat.templates.thinking_variables import THINKING_VARIABLES
from quire.frontend.text.checkpoint_file import read_json_object
from quire.frontend.text.special_spellings import SpecialSpellings
from quire.frontend.unknown_fields import UnknownFields

MAX_PROMPT_CHARACTERS = 16 * 2**20
PARAMETERS = ("messages", "tools", "documents", "add_generation_prompt")
FUNCTIONS = ("raise_exception", "strftime_now")
TEMPLATE_HINT = (
    "pass one with --chat-template FILE (or chat_template=FILE), or use /v1/completions and "
    "`generate`, which need none"
)


class ChatTemplate:
    """The chat template of a model, or several by name.

    Args:
        templates: Template texts by name; `default` is used, or `tool_use` when there are tools.
        special_tokens: Texts of special tokens such as bos_token, by name; template variables.
        max_characters: Largest number of characters of a rendered prompt.
        plain_spellings: Special tokens that a conversation cannot use: in its texts they are plain
            text.
        call_ids: Function that returns the id which the template gets for a call; see
            `ToolParser.prompt_call_id`.
    """

    def __init__(
        self,
        templates: Mapping[str, str] | str,
        special_tokens: Mapping[str, str] | None = None,
        max_characters: int = MAX_PROMPT_CHARACTERS,
        plain_spellings: Collection[str] = (),
        call_ids: PromptCallId = as_sent,
    ) -> None:
        self._call_ids = call_ids
        self._openings = KnownOpenings()
        self.templates = {"default": templates} if isinstance(templates, str) else dict(templates)
        self._special_tokens = dict(special_tokens or {})
        self._max_characters = max_characters
        self._plain_spellings = SpecialSpellings(plain_spellings)
        self._environment = _environment()
        self._compiled = {
            name: _compile(self._environment, name, text) for name, text in self.templates.items()
        }
        self._reserved = {*PARAMETERS, *FUNCTIONS, *self._special_tokens}

    @classmethod
    def load(
        cls,
        folder: Path,
        override: Path | str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        plain_spellings: Collection[str] = (),
    ) -> "ChatTemplate":
        """Read a checkpoint's template; without one, `render` fails.

        Args:
            folder: Folder of the checkpoint.
            override: Path of a Jinja file to use in place of the model's own template.
            special_tokens: Texts of special tokens by name, as in `Tokenizer.special_tokens`.
            plain_spellings: Special tokens that a conversation cannot use.

        Raises:
            SettingsError: The override is not a file.
            CheckpointCorruptError: The checkpoint's template is not valid Jinja.
        """
        if override is None:
            own = _own_templates(Path(folder))
            return cls(own, special_tokens, plain_spellings=plain_spellings)
        path = Path(override)
        try:
            given = path.read_text("utf-8")
            return cls(given, special_tokens, plain_spellings=plain_spellings)
        except (OSError, UnicodeDecodeError, CheckpointCorruptError) as error:
            raise SettingsError(
                f"chat_template must be a Jinja file; {path} cannot be used: {error}"
            ) from error

    def with_call_ids(self, call_ids: PromptCallId) -> "ChatTemplate":
        """Return the same template with another function for the ids of calls."""
        template = copy(self)
        template._call_ids = call_ids
        return template

    @property
    def exists(self) -> bool:
        """Whether there is a template to render with."""
        return bool(self.templates)

    @property
    def source(self) -> str:
        """The joined texts of all templates, in which parsers search for their markers."""
        return "\n".join(self.templates.values())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        finds_opening: bool = False,
        unknown: UnknownFields = STRICT,
    ) -> RenderedPrompt:
        """Return the prompt for a conversation, special tokens included.

        Args:
            messages: Messages in OpenAI's format.
            tools: Tools as `checked_tools` returns them.
            template_kwargs: Additional template variables, such as `enable_thinking`. A separate
                mapping, so that a client cannot set the other parameters.
            add_generation_prompt: True to end with the start of the assistant's turn.
            continue_final_message: True to end within the last message, after its text.
            finds_opening: Whether the prompt says what the template wrote behind the conversation,
                for a reasoning parser. This takes a second rendering, unless it is known from
                another prompt.
            unknown: What happens to fields of messages that do not exist, and to variables that the
                template does not read.

        Raises:
            ChatTemplateError: There is no template, it refuses the conversation, or it does not
                write the message to continue.
            InvalidRequestError: A message or a name in `template_kwargs` is invalid.
            UnknownFieldError: There is no such field or variable, and `unknown` is not lenient.
        """
        names = dict(template_kwargs or {})
        self._check_names(names, unknown)
        normal = with_prompt_ids(normalize_messages(messages, unknown), self._call_ids)
        names |= {"tools": normalize_tools(tools), "documents": None}

        def written(messages: list[Message], *, add_generation_prompt: bool) -> RenderedPrompt:
            given = names | {"messages": messages}
            texts = MarkedTexts(given, self._plain_spellings, self.source)
            variables = self._special_tokens | texts.variables
            variables["add_generation_prompt"] = add_generation_prompt
            return texts.rendered(self._render(self._choose(bool(tools)), variables))

        if continue_final_message:
            marked = with_end_mark(messages, normal)
            prompt = written(marked, add_generation_prompt=add_generation_prompt)
            return cut_at_end_mark(prompt, normal)
        prompt = written(normal, add_generation_prompt=add_generation_prompt)
        if not finds_opening:
            return prompt
        variables = json.dumps(template_kwargs, sort_keys=True, default=str).encode()
        digest = sha256(variables).digest()
        key = (digest, bool(tools), normal[-1]["role"], add_generation_prompt)
        opening = self._openings.find(key, prompt.text)
        if opening is None:
            opening = opening_of(
                prompt.text,
                lambda: written(normal, add_generation_prompt=False).text,
                lambda: (
                    written(marked_at_end(normal), add_generation_prompt=add_generation_prompt).text
                ),
            )
            self._openings.add(key, opening)
        return replace(prompt, opening=opening)

    def _check_names(self, kwargs: Mapping[str, Any], unknown: UnknownFields) -> None:
        """Check that variables are the client's to set, and that the template reads them.

        The switches of thinking count as read: clients send them to all models.
        """
        for name in kwargs:
            if self._is_reserved(name):
                raise InvalidRequestError(
                    f"chat_template_kwargs cannot set {name!r}: the name is reserved",
                    param="chat_template_kwargs",
                )
        if self.exists:
            unknown.check(kwargs, self._variables, "chat_template_kwargs")

    @cached_property
    def _variables(self) -> frozenset[str]:
        """Variables that a client may set; most clients set none."""
        return THINKING_VARIABLES | {
            name
            for text in self.templates.values()
            for name in meta.find_undeclared_variables(self._environment.parse(text))
            if not self._is_reserved(name)
        }

    def _is_reserved(self, name: str) -> bool:
        return name in self._reserved or name.startswith("_")

    def _choose(self, has_tools: bool) -> jinja2.Template:
        if not self._compiled:
            raise ChatTemplateError(f"this model has no chat template; {TEMPLATE_HINT}")
        if has_tools and "tool_use" in self._compiled:
            return self._compiled["tool_use"]
        if "default" in self._compiled:
            return self._compiled["default"]
        names = ", ".join(self._compiled)
        raise ChatTemplateError(
            f"this model has the chat templates {names} and none is the default; {TEMPLATE_HINT}"
        )

    def _render(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        num_characters = 0
        try:
            for piece in template.generate(variables):
                num_characters += len(piece)
                if num_characters > self._max_characters:
                    raise ChatTemplateError(
                        f"the chat template wrote more than {self._max_characters} characters",
                        param="messages",
                    )
                pieces.append(piece)
        except ChatTemplateError:
            raise
        except Exception as error:  # the template is third-party code and may raise anything
            raise ChatTemplateError(
                f"the chat template cannot render this conversation: {error}", param="messages"
            ) from error
        return "".join(pieces)


class GenerationBlock(Extension):
    """The block `{% generation %}`, which marks training targets; rendered as its content."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 asks for a set here

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationBlock],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _compile(environment: ImmutableSandboxedEnvironment, name: str, text: str) -> jinja2.Template:
    try:
        return environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointCorruptError(
            f"chat template {name!r} is not valid Jinja, line {error.lineno}: {error.message}; "
            f"{TEMPLATE_HINT}"
        ) from error


def _own_templates(folder: Path) -> dict[str, str]:
    """Return the templates from chat_template.jinja, else from tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return {"default": path.read_text("utf-8")}
    declared = read_json_object(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(declared, str):
        return {"default": declared}
    if isinstance(declared, list):
        return {entry["name"]: entry["template"] for entry in declared if _is_named(entry, folder)}
    return {}


def _is_named(entry: object, folder: Path) -> bool:
    """Return whether an entry of a list of templates is complete.

    Raises:
        CheckpointCorruptError: It has no name or no text.
    """
    if isinstance(entry, dict) and {"name", "template"} <= entry.keys():
        return True
    raise CheckpointCorruptError(
        f"{folder / 'tokenizer_config.json'}: each chat template in a list needs `name` and "
        f"`template`, got {entry!r}"
    )


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return a value as JSON; Jinja's own filter would add HTML escapes."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:  # noqa: A002 - templates pass it by this name, too
    return datetime.now().astimezone().strftime(format)
