"""POST /api/chat and /api/generate."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from quire.errors import InvalidRequestError
from quire.server.http.json_response import json_response
from quire.server.routes.chat.chat_turn import ChatTurns, num_logprobs
from quire.server.routes.generation import Generation, respond
from quire.server.routes.ollama.ollama_protocol import (
    REFUSED_OF_OLLAMA,
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
)
from quire.server.routes.ollama.ollama_reply import (
    MakeReply,
    OllamaRun,
    chat_reply,
    generate_reply,
    load_reply,
)
from quire.server.routes.ollama.ollama_request import (
    chat_body,
    names_as_sent,
    sampler_fields,
    served_name,
    translated_messages,
)
from quire.server.wire.bodies import Body
from quire.server.wire.params import prompt_with_options, sampling_params
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
        if not typed.messages:
            return self._loaded(chat_reply, typed)
        messages = translated_messages(typed.messages)
        made = chat_body(typed, messages, self._turns.frontend, typed.tools)
        return await self._turn(body, made, sender, extra_args, chat_reply)

    async def _prepare_generate(
        self, body: Body[OllamaGenerateBody], sender: Sender, extra_args: dict[str, Any]
    ) -> OllamaRun | Response:
        typed, template = body.typed, self._turns.frontend.chat_template
        if typed.raw and typed.system:
            raise InvalidRequestError(
                "raw: true takes the prompt as it is; write the system text into it", param="system"
            )
        if not typed.prompt:
            return self._loaded(generate_reply, typed)
        if typed.raw or not (template.exists or typed.system):
            return self._raw(typed, typed.prompt, sender, extra_args)
        made = chat_body(typed, _conversation(typed.system, typed.prompt), self._turns.frontend)
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
        self, body: OllamaGenerateBody, prompt: str, sender: Sender, extra_args: dict[str, Any]
    ) -> OllamaRun:
        """Return the run of a prompt that no template renders."""
        frontend = self._turns.frontend
        made = chat_body(body, [], frontend)
        adapter = frontend.resolve_adapter(made.model)
        with names_as_sent():
            params = sampling_params(
                made,
                max_tokens=made.max_tokens,
                logprobs=num_logprobs(made),
                prompt_logprobs=None,
                extra_args=extra_args | self._sampler_fields(body),
                unknown=self._turns.unknown,
            )
        prompts = [prompt_with_options(prompt, made)]
        generation = Generation(
            frontend, self._turns.budget, prompts, params, adapter, made, sender
        )
        return OllamaRun(generation, None, generate_reply, self._name(body), True)

    def _sampler_fields(self, body: OllamaBody) -> dict[str, Any]:
        return sampler_fields(body.options, self._turns.frontend.intake.extra_fields)

    def _loaded(self, make: MakeReply, body: OllamaBody) -> Response:
        """Return the response to a request that only asks that the model is loaded."""
        frontend = self._turns.frontend
        frontend.resolve_adapter(served_name(frontend, body.model))
        return json_response(load_reply(make, self._name(body)))

    def _name(self, body: OllamaBody) -> str:
        return body.model or self._turns.frontend.model_name


def _conversation(system: str | None, prompt: str) -> list[dict[str, Any]]:
    first = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": prompt}]
