"""Tokens of a request's prompt, for the router; the replica says what is wrong with a request."""

import asyncio
from typing import Any

import msgspec

from quire.compose.checkpoint import find_checkpoint
from quire.config import Settings
from quire.errors import QuireError
from quire.frontend.chat.chat_template import ChatTemplate
from quire.frontend.text.tokenizer import Tokenizer
from quire.launch.composing import load_text
from quire.plugins.loading import load_plugins

INLINE_BYTES = 8 * 1024  # larger bodies are tokenized in a thread


class PromptTokens(msgspec.Struct, frozen=True, array_like=True):
    """What the router reads of a prompt.

    Attributes:
        token_ids: Token ids; empty if they are not known.
        owner: Model or adapter and cache salt: prefixes are shared only if it is the same.
        max_tokens: Largest number of tokens of the completion; None: not given.
    """

    token_ids: list[int]
    owner: str
    max_tokens: int | None


NO_TOKENS = PromptTokens([], "", None)


class PromptReader:
    """Reads the prompts of request bodies with the model's tokenizer and chat template.

    Args:
        tokenizer: Tokenizer of the model.
        template: Chat template of the model.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template

    @classmethod
    def load(cls, settings: Settings) -> "PromptReader":
        """Load tokenizer and template, without the weights.

        Raises:
            QuireError: There is no such model, or its files are invalid.
        """
        plugins = load_plugins(settings.plugins)
        checkpoint = find_checkpoint(settings.model, plugins.registries.checkpoints, False)
        return cls(*load_text(settings, plugins, checkpoint))

    async def read(self, path: str, body: bytes) -> PromptTokens:
        """Return the prompt of a request; no tokens if it has none, or an invalid one."""
        if path not in ("/v1/completions", "/v1/chat/completions"):
            return NO_TOKENS
        if len(body) > INLINE_BYTES:
            return await asyncio.to_thread(self._read, body)
        return self._read(body)

    def _read(self, body: bytes) -> PromptTokens:
        try:
            fields = msgspec.json.decode(body, type=dict[str, Any])
            return PromptTokens(self._token_ids(fields), _owner(fields), _max_tokens(fields))
        except (msgspec.MsgspecError, QuireError, RecursionError, TypeError, ValueError):
            return NO_TOKENS  # the replica refuses the request, or reads it in another way

    def _token_ids(self, fields: dict[str, Any]) -> list[int]:
        """Return the tokens of a body's prompt; of the first one, if there are several."""
        if "messages" in fields:
            variables = fields.get("chat_template_kwargs") or {}
            text = self._template.render(fields["messages"], fields.get("tools"), variables)
            return self._tokenizer.encode(text, fields.get("add_special_tokens") is True)
        prompt = fields.get("prompt")
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt, fields.get("add_special_tokens") is not False)
        return msgspec.convert(prompt, list[int])


def _owner(fields: dict[str, Any]) -> str:
    return f"{fields.get('model')}\n{fields.get('cache_salt')}"


def _max_tokens(fields: dict[str, Any]) -> int | None:
    given = fields.get("max_completion_tokens", fields.get("max_tokens"))
    return given if isinstance(given, int) and given > 0 else None
