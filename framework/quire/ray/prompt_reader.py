"""Tokens of a request's prompt, for the router; the replica says what is wrong with a request."""

import asyncio
from typing import Any

import msgspec

from quire.compose.checkpoint import find_checkpoint
from quire.config import Settings
from quire.errors import QuireError
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.chat.tools.checked_tools import checked_tools
from quire.frontend.text.tokenizer import Tokenizer
from quire.frontend.unknown_fields import UnknownFields
from quire.launch.composing import load_text
from quire.messages import EngineRequest
from quire.plugins.loading import load_plugins
from quire.sampling_params import SamplingParams
from quire.server.keys.cache_salts import combined_salt

NO_LIMIT = 1 << 20  # tokens of a completion whose limit is not given
INLINE_BYTES = 8 * 1024  # larger bodies are tokenized in a thread


class PromptTokens(msgspec.Struct, frozen=True, array_like=True):
    """What the router reads of a prompt.

    Attributes:
        token_ids: Token ids; empty if they are not known.
        owner: Result of `owner_of`: prefixes are shared only if it is the same.
        max_tokens: Largest number of tokens of the completion; None: not given.
    """

    token_ids: list[int]
    owner: str
    max_tokens: int | None


NO_TOKENS = PromptTokens([], "", None)


def owner_of(adapter: str | None, cache_salt: str | None) -> str:
    """Return the owner of a prompt: the adapter, if any, and the cache salt."""
    return f"{adapter or ''}\n{cache_salt or ''}"


def as_request(request_id: str, prompt: PromptTokens) -> EngineRequest:
    """Return a request of which the router reads what is known of the prompt."""
    return EngineRequest(
        request_id=request_id,
        token_ids=prompt.token_ids,
        params=SamplingParams(),
        max_tokens=prompt.max_tokens or NO_LIMIT,
        seed=0,
        cache_salt=prompt.owner,
    )


class PromptReader:
    """Reads the prompts of request bodies with the model's tokenizer and chat template.

    Args:
        tokenizer: Tokenizer of the model.
        template: Chat template of the model.
        model_name: Name of the model in requests; any other one is that of an adapter.
        unknown: What happens to fields that do not exist, as in the replicas.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        model_name: str,
        unknown: UnknownFields,
    ) -> None:
        self._model_name = model_name
        self._unknown = unknown
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
        model_name = settings.model.served_model_name or checkpoint.name
        unknown = UnknownFields(settings.server.lenient_fields)
        return cls(*load_text(settings, plugins, checkpoint), model_name, unknown)

    async def read(self, path: str, body: bytes, key_salt: str | None = None) -> PromptTokens:
        """Return the prompt of a request; no tokens if it has none, or an invalid one.

        Args:
            path: Path of the request.
            body: Body of the request.
            key_salt: Salt of the prefix cache of the request's key.
        """
        if path not in ("/v1/completions", "/v1/chat/completions"):
            return NO_TOKENS
        if len(body) > INLINE_BYTES:
            return await asyncio.to_thread(self._read, body, key_salt)
        return self._read(body, key_salt)

    def _read(self, body: bytes, key_salt: str | None) -> PromptTokens:
        try:
            fields = msgspec.json.decode(body, type=dict[str, Any])
            if key_salt is not None:
                own_salt = msgspec.convert(fields.get("cache_salt"), str | None)
                fields["cache_salt"] = combined_salt(key_salt, own_salt)
            return PromptTokens(self._token_ids(fields), self._owner(fields), _max_tokens(fields))
        except (msgspec.MsgspecError, QuireError, RecursionError, TypeError, ValueError):
            return NO_TOKENS  # the replica refuses the request, or reads it in another way

    def _owner(self, fields: dict[str, Any]) -> str:
        model = fields.get("model")
        return owner_of(None if model == self._model_name else model, fields.get("cache_salt"))

    def _token_ids(self, fields: dict[str, Any]) -> list[int]:
        """Return the tokens of a body's prompt; of the first one, if there are several."""
        if "messages" in fields:
            variables = fields.get("chat_template_kwargs") or {}
            tools = checked_tools(fields.get("tools"), self._unknown)
            rendered = self._template.render(
                fields["messages"], tools, variables, unknown=self._unknown
            )
            if rendered.breaks:
                return self._tokenizer.encode_broken(rendered.text, rendered.breaks)
            return self._tokenizer.encode(rendered.text, fields.get("add_special_tokens") is True)
        prompt = fields.get("prompt")
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt, fields.get("add_special_tokens") is not False)
        return msgspec.convert(prompt, list[int])


def _max_tokens(fields: dict[str, Any]) -> int | None:
    given = fields.get("max_completion_tokens", fields.get("max_tokens"))
    return given if isinstance(given, int) and given > 0 else None
