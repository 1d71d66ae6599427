"""POST /api/chat and /api/generate."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire.errors import InvalidRequestError
from quire.server.http.json_response import json_response
from quire.server.routes.chat.chat_turn import ChatTurns
from quire.server.routes.generation import Generation
from quire.server.routes.ollama.ollama_protocol import (
    REFUSED_OF_OLLAMA,
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
)
from quire.server.routes.ollama.ollama_reply import (
    LoadReason,
    MakeReply,
    OllamaRun,
    chat_reply,
    generate_reply,
    load_reply,
)
from quire.server.routes.ollama.ollama_request import (
    chat_body,
    is_zero,
    names_as_sent,
    sampler_fields,
    served_name,
    translated_messages,
)
from quire.server.routes.respond import respond
from quire.server.wire.bodies import Body
from quire.server.wire.params import prompt_with_options
from quire.server.wire.protocol import ChatBody
from quire.server.wire.sender import Sender


class OllamaRoutes:
    """Endpoints that generate.

    Args:
        turns: Turns of conversations.
    """

    def __init__(self, turns: ChatTurns) -> None:
        self._turns = turns

    async def chat(self, request: Request) -> Response:
        """Return the next message of a conversation, in full or as lines of JSON."""
        return await self._respond(request, OllamaChatBody, self._prepare_chat)

    async def generate(self, request: Request) -> Response:
        """Return a completion of a prompt, in full or as lines of JSON."""
        return await self._respond(request, OllamaGenerateBody, self._prepare_generate)

    async def _respond(self, request: Request, kind: Any, prepare: Any) -> Response:
        frontend = self._turns.frontend
        return await respond(
            request,
            frontend,
            kind,
            self._turns.unknown,
            prepare,
            REFUSED_OF_OLLAMA,
            lambda name: served_name(frontend, name),
        )

    async def _prepare_chat(
        self, body: Body[OllamaChatBody], sender: Sender, extra_args: dict[str, Any]
    ) -> OllamaRun | Response:
        typed = body.typed
        messages = translated_messages(typed.messages or ())
        made = chat_body(typed, messages, self._turns.frontend, typed.tools)
        if not messages:
            return self._loaded(typed, made, extra_args, chat_reply)
        return await self._turn(body, made, sender, extra_args, chat_reply)

    async def _prepare_generate(
        self, body: Body[OllamaGenerateBody], sender: Sender, extra_args: dict[str, Any]
    ) -> OllamaRun | Response:
        typed, template = body.typed, self._turns.frontend.chat_template
        if typed.raw and typed.system:
            raise InvalidRequestError(
                "raw: true takes the prompt as it is; write the system text into it", param="system"
            )
        prompt = typed.prompt or ""
        made = chat_body(typed, _conversation(typed.system, prompt), self._turns.frontend)
        if not prompt:
            return self._loaded(typed, made, extra_args, generate_reply)
        if typed.raw or not (template.exists or typed.system):
            return self._raw(typed, made, prompt, sender, extra_args)
        return await self._turn(body, made, sender, extra_args, generate_reply)

    async def _turn(
        self,
        body: Body[Any],
        made: ChatBody,
        sender: Sender,
        extra_args: dict[str, Any],
        make: MakeReply,
    ) -> OllamaRun:
        given: OllamaBody = body.typed
        with names_as_sent():
            fields = extra_args | self._sampler_fields(given)
            turn = await self._turns.prepare(Body(made, {}, body.num_bytes), sender, fields)
        return OllamaRun(turn.generation, turn, make, self._name(given), given.think is not False)

    def _raw(
        self,
        given: OllamaGenerateBody,
        made: ChatBody,
        prompt: str,
        sender: Sender,
        extra_args: dict[str, Any],
    ) -> OllamaRun:
        """Return the run of a prompt that no template renders."""
        frontend = self._turns.frontend
        with names_as_sent():
            adapter, _, params = self._turns.checked(made, extra_args | self._sampler_fields(given))
        prompts = [prompt_with_options(prompt, made)]
        generation = Generation(
            frontend, self._turns.budget, prompts, params, adapter, made, sender
        )
        return OllamaRun(generation, None, generate_reply, self._name(given), True)

    def _sampler_fields(self, body: OllamaBody) -> dict[str, Any]:
        return sampler_fields(body.options, self._turns.frontend.intake.extra_fields)

    def _loaded(
        self, given: OllamaBody, made: ChatBody, extra_args: dict[str, Any], make: MakeReply
    ) -> Response:
        """Return the response to a request that only asks to load or unload the model."""
        with names_as_sent():
            self._turns.checked(made, extra_args | self._sampler_fields(given))
        reason: LoadReason = "unload" if is_zero(given.keep_alive) else "load"
        return json_response(load_reply(make, self._name(given), reason))

    def _name(self, body: OllamaBody) -> str:
        return body.model or self._turns.frontend.model_name


def _conversation(system: str | None, prompt: str) -> list[dict[str, Any]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": prompt}]
