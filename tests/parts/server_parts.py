"""A frontend over a scripted core, with its own parsers, behind a real server."""

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chat_parsers import calling, thinking
from scripted_core import Reply, ScriptedCore

from quire.config import ServerSettings
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.chat.parsing.completion_parsers import CompletionParsers
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.intake.intake import Intake
from quire.frontend.intake.request_hooks import RequestHook
from quire.frontend.text.tokenizer import Tokenizer
from quire.interfaces.reasoning import (
    ContentDelta,
    ReasoningDelta,
    ReasoningEvent,
    ReasoningParser,
)
from quire.interfaces.sampling import RequestField
from quire.interfaces.tool_parsing import (
    CallGrammar,
    CallShape,
    SchemaPiece,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
    ToolParser,
)
from quire.messages import AdapterRef, EngineRequest
from quire.plugins.registry import Source
from quire.server.bound_sockets import bound_socket
from quire.server.http_server import HTTPServer
from quire.server.tool_servers.tool_servers import ToolServers

CHECKPOINT = Path(__file__).parents[2] / "plugins" / "demo" / "quire_demo" / "checkpoint"
MAX_MODEL_LEN = 512
SOURCE = Source("scripted", "scripted-plugin", "1")
DEFAULT_REPLY = "I am a script."


@dataclass
class Texts:
    """A script of texts: found by the longest key that occurs in the prompt.

    A list has one text a child; an error behind a text ends the request, or the engine, after it.
    """

    tokenizer: Tokenizer
    by_prompt: dict[str, Any] = field(default_factory=dict)

    def __call__(self, request: EngineRequest) -> Reply:
        prompt = self.tokenizer.decode(request.token_ids, skip_special_tokens=False)
        keys = sorted((key for key in self.by_prompt if key in prompt), key=len)
        found = self.by_prompt[keys[-1]] if keys else DEFAULT_REPLY
        if isinstance(found, list):
            found = found[request.child % len(found)]
        text, error = found if isinstance(found, tuple) else (found, None)
        token_ids = self.tokenizer.encode(text, add_special_tokens=False)
        return Reply(
            [*token_ids, *self.tokenizer.eos_token_ids[:1]] if error is None else token_ids, error
        )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


class BracketParser(ToolParser):
    """Reads calls such as `[[name {"json": 1}]]`; one that breaks off is text after all."""

    def __init__(self) -> None:
        self._text = ""
        self._index = -1
        self._call: str | None = None  # all of its text, while it is open

    def feed(self, delta: str) -> list[ToolEvent]:
        self._text += delta
        events: list[ToolEvent] = []
        while found := self._next():
            events += found
        return events

    def close(self) -> list[ToolEvent]:
        text, self._text = (self._call or "") + self._text, ""
        return [TextDelta(text)] if text else []

    def _next(self) -> list[ToolEvent]:
        if self._call is not None:
            return self._arguments(self._call)
        head, bracket, rest = self._text.partition("[[")
        if not bracket:
            return [TextDelta(shown)] if (shown := self._take_up_to("[")) else []
        if head:
            self._text = bracket + rest
            return [TextDelta(head)]
        name, space, rest_text = rest.partition(" ")
        if not space:
            return []
        if not name:
            self._text = rest
            return [TextDelta(bracket)]
        self._call, self._text = f"[[{name} ", rest_text
        self._index += 1
        return [ToolCallStart(self._index, name)]

    def _arguments(self, call: str) -> list[ToolEvent]:
        head, bracket, rest = self._text.partition("]]")
        if not bracket:
            piece = self._take_up_to("]")
            self._call = call + piece
            return [ToolCallArguments(self._index, piece)] if piece else []
        self._text, self._call = rest, None
        last: list[ToolEvent] = [ToolCallArguments(self._index, head)] if head else []
        if not _is_object((call + head).partition(" ")[2]):
            return [*last, TextDelta(f"{call}{head}{bracket}")]
        return [*last, ToolCallEnd(self._index)]

    def _take_up_to(self, partial_tag: str) -> str:
        """Return the text, but hold back what may become a tag."""
        held = partial_tag if self._text.endswith(partial_tag) else ""
        taken = self._text.removesuffix(held) if held else self._text
        self._text = held
        return taken

    @classmethod
    def call_grammar(
        cls, tools: Sequence[dict[str, Any]], *, at_least_one: bool
    ) -> CallGrammar | None:
        shapes = tuple(
            CallShape(tool["name"], (f"[[{tool['name']} ", SchemaPiece(tool["parameters"]), "]]"))
            for tool in tools
        )
        return CallGrammar(shapes, separator="", triggers=() if at_least_one else ("[[",))


class ThinkParser(ReasoningParser):
    """Reads `<t>reasoning</t>content`, with tags in one piece or not."""

    def __init__(self, prompt_text: str = "") -> None:
        super().__init__(prompt_text)
        self._held = ""
        self._state = "start"

    @property
    def is_thinking(self) -> bool:
        return self._state == "thinking"

    def feed(self, delta: str) -> list[ReasoningEvent]:
        self._held += delta
        if self._state == "start":
            if self._held.startswith("<t>"):
                self._held, self._state = self._held[3:], "thinking"
            elif not "<t>".startswith(self._held):
                self._state = "content"
            else:
                return []
        events: list[ReasoningEvent] = []
        if self._state == "thinking":
            thought, tag, rest = self._held.partition("</t>")
            if not tag:
                return events
            events = [ReasoningDelta(thought)] if thought else []
            self._held, self._state = rest, "content"
        text, self._held = self._held, ""
        return [*events, ContentDelta(text)] if text else events

    def close(self) -> list[ReasoningEvent]:
        text, self._held = self._held, ""
        kind = ReasoningDelta if self._state == "thinking" else ContentDelta
        return [kind(text)] if text else []


def make_frontend(
    tokenizer: Tokenizer,
    core: ScriptedCore,
    parsers: CompletionParsers | None = None,
    received_hooks: Sequence[RequestHook] = (),
    max_model_len: int = MAX_MODEL_LEN,
    **options: Any,
) -> AsyncFrontend:
    intake = Intake(
        tokenizer,
        max_model_len=max_model_len,
        vocab_size=tokenizer.vocab_size,
        fields=[
            RequestField("temperature", float, 1.0),
            RequestField("warmth", float, 0.0, minimum=0.0, maximum=2.0),
        ],
        hooks=received_hooks,
        has_priorities=True,
    )
    return AsyncFrontend(
        core,
        tokenizer,
        intake,
        ChatTemplate.load(
            CHECKPOINT,
            special_tokens=tokenizer.special_tokens,
            plain_spellings=tokenizer.special_spellings,
        ),
        parsers or CompletionParsers(thinking(ThinkParser, SOURCE), calling(BracketParser, SOURCE)),
        "demo",
        {"pirate": AdapterRef("pirate", "adapters/pirate", "c0ffee")},
        max_model_len,
        **options,
    )


@dataclass
class Served:
    """A server that runs."""

    url: str
    core: Any
    frontend: AsyncFrontend
    server: HTTPServer
    thread: threading.Thread

    @property
    def texts(self) -> Texts:
        """The script of a scripted core."""
        script: Texts = self.core.script
        return script


def start_server(
    core: Any,
    frontend: AsyncFrontend,
    tool_servers: ToolServers | None = None,
    **settings: Any,
) -> Served:
    """Serve in a thread, on a free port; the caller stops it."""
    options = ServerSettings(**{"port": 0, "shutdown_timeout_s": 5.0} | settings)
    ready = threading.Event()
    urls: list[str] = []
    server = HTTPServer(
        frontend,
        options,
        lambda: [{"name": "scripted", "state": "loaded"}],
        lambda url: (urls.append(url), ready.set()),
        tool_servers=tool_servers,
    )
    thread = threading.Thread(target=server.run, args=([bound_socket(options)],))
    thread.start()
    assert ready.wait(10)
    return Served(urls[0], core, frontend, server, thread)


def stop_servers(running: Sequence[Served]) -> None:
    """Stop servers without waiting for their requests."""
    for served in running:
        served.server.stop()
        served.server.stop()
    for served in running:
        served.thread.join(10)
        assert not served.thread.is_alive()
