"""A real frontend over an engine that answers from a script, behind a real server."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from quire.config import ServerSettings
from quire.errors import OverloadedError
from quire.frontend.answer import AnswerParsers, ParserChoice
from quire.frontend.async_frontend import AsyncFrontend
from quire.frontend.chat_template import ChatTemplate
from quire.frontend.intake import Intake
from quire.frontend.tokenizer import Tokenizer
from quire.interfaces.reasoning import (
    ContentDelta,
    ReasoningDelta,
    ReasoningEvent,
    ReasoningParser,
)
from quire.interfaces.sampling import RequestField
from quire.interfaces.tool_parsing import (
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
    ToolEvent,
    ToolParser,
)
from quire.messages import (
    AdapterRef,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    EngineStats,
    ErrorReport,
    TokenLogprobs,
)
from quire.registry import Source
from quire.server.serve import HTTPServer, listening_socket

CHECKPOINT = Path(__file__).parents[3] / "plugins" / "demo" / "quire_demo" / "checkpoint"
MAX_MODEL_LEN = 512
SOURCE = Source("scripted", "scripted-plugin", "1")
DEFAULT_REPLY = "I am a script."


@dataclass
class Running:
    """A request, and what is left of its answer."""

    request: EngineRequest
    token_ids: list[int]
    has_end: bool  # else it is an error after these tokens
    error: ErrorReport | None = None
    num_sent: int = 0


@dataclass
class ScriptedCore:
    """An engine core that knows its answers: one or more tokens a step for each request.

    A reply is found by the longest key that occurs in the prompt; a list has one reply a child; an
    `ErrorReport` behind a text fails the request after it.
    """

    tokenizer: Tokenizer
    replies: dict[str, Any] = field(default_factory=dict)
    step_s: float = 0.0
    tokens_per_step: int = 1
    max_queued: int = 1000
    requests: list[EngineRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    is_broken: bool = False
    running: dict[str, Running] = field(default_factory=dict)

    def add(self, request: EngineRequest) -> None:
        if len(self.running) >= self.max_queued:
            raise OverloadedError("the queue is full; try again later")
        self.requests.append(request)
        text, error = self._reply(request)
        self.running[request.request_id] = Running(
            request, self.tokenizer.encode(text, add_special_tokens=False), error is None, error
        )

    def abort(self, request_ids: Sequence[str]) -> None:
        known = [i for i in request_ids if self.running.pop(i, None)]
        self.aborted += known

    def has_work(self) -> bool:
        return bool(self.running)

    def control(self, name: str, argument: Any = None) -> Any:
        raise NotImplementedError(name)

    def shutdown(self) -> None:
        self.running.clear()

    def step(self) -> EngineOutputs:
        time.sleep(self.step_s)
        if self.is_broken:
            raise RuntimeError("a kernel at 0xdeadbeef0000 failed in /opt/secret/kernel.py")
        outputs = [self._advance(running) for running in list(self.running.values())]
        for output in outputs:
            if output.finish_reason is not None:
                del self.running[output.request_id]
        return EngineOutputs(outputs, EngineStats(num_running=len(self.running)))

    def _reply(self, request: EngineRequest) -> tuple[str, ErrorReport | None]:
        prompt = self.tokenizer.decode(request.token_ids, skip_special_tokens=False)
        keys = sorted((key for key in self.replies if key in prompt), key=len)
        reply = self.replies[keys[-1]] if keys else DEFAULT_REPLY
        if isinstance(reply, list):
            reply = reply[request.child % len(reply)]
        return reply if isinstance(reply, tuple) else (reply, None)

    def _advance(self, running: Running) -> EngineOutput:
        request, start = running.request, running.num_sent
        if start >= len(running.token_ids) and running.error is not None:
            return EngineOutput(
                request_id=request.request_id,
                token_ids=[],
                finish_reason="error",
                error=running.error,
            )
        room = min(self.tokens_per_step, request.max_tokens - start)
        new = running.token_ids[start : start + room]
        running.num_sent += len(new)
        finish = None
        if running.num_sent >= len(running.token_ids) and running.has_end and len(new) < room:
            new = [*new, self.tokenizer.eos_token_ids[0]]
            running.num_sent += 1
            finish = "stop"
        elif running.num_sent >= request.max_tokens:
            finish = "length"
        return EngineOutput(
            request_id=request.request_id,
            token_ids=new,
            logprobs=self._logprobs(new, request.params.logprobs),
            finish_reason=finish,
        )

    def _logprobs(self, token_ids: list[int], num: int | None) -> list[TokenLogprobs] | None:
        if num is None:
            return None
        alternatives = [300 + i for i in range(num)]
        numbers = [-1.0 - i for i in range(num)]
        if num > 2:
            numbers[-1] = float("-inf")
        return [TokenLogprobs([t, *alternatives], [-0.25, *numbers], 1) for t in token_ids]


class BracketParser(ToolParser):
    """Reads calls of the form `[[name {"json": 1}]]`; one that breaks off is text after all."""

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
        name, space, self_text = rest.partition(" ")
        if not space:
            return []
        self._call, self._text = f"[[{name} ", self_text
        self._index += 1
        return [ToolCallStart(self._index, name)]

    def _arguments(self, call: str) -> list[ToolEvent]:
        head, bracket, rest = self._text.partition("]]")
        if not bracket:
            piece = self._take_up_to("]")
            self._call = call + piece
            return [ToolCallArguments(self._index, piece)] if piece else []
        self._text, self._call = rest, None
        ended: list[ToolEvent] = [ToolCallArguments(self._index, head)] if head else []
        return [*ended, ToolCallEnd(self._index)]

    def _take_up_to(self, half_tag: str) -> str:
        """Take the text, but hold back what may become a tag."""
        held = half_tag if self._text.endswith(half_tag) else ""
        taken = self._text.removesuffix(held) if held else self._text
        self._text = held
        return taken

    @classmethod
    def call_grammar(cls, tools: Sequence[dict[str, Any]], *, at_least_one: bool) -> str | None:
        names = "|".join(tool["name"] for tool in tools)
        return rf"\[\[({names}) \{{.*\}}\]\]" if at_least_one else None


class ThinkParser(ReasoningParser):
    """Reads `<t>thinking</t>answer`, whole tags in one piece or not."""

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
                self._state = "answer"
            else:
                return []
        events: list[ReasoningEvent] = []
        if self._state == "thinking":
            thought, tag, rest = self._held.partition("</t>")
            if not tag:
                return events
            events = [ReasoningDelta(thought)] if thought else []
            self._held, self._state = rest, "answer"
        text, self._held = self._held, ""
        return [*events, ContentDelta(text)] if text else events

    def close(self) -> list[ReasoningEvent]:
        text, self._held = self._held, ""
        kind = ReasoningDelta if self._state == "thinking" else ContentDelta
        return [kind(text)] if text else []


@dataclass
class Served:
    """A server that runs."""

    url: str
    core: ScriptedCore
    frontend: AsyncFrontend
    server: HTTPServer
    thread: threading.Thread


Serve = Callable[..., Served]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(CHECKPOINT)


def make_frontend(
    tokenizer: Tokenizer, core: ScriptedCore, parsers: AnswerParsers | None = None
) -> AsyncFrontend:
    intake = Intake(
        tokenizer,
        max_model_len=MAX_MODEL_LEN,
        vocab_size=tokenizer.vocab_size,
        fields=[
            RequestField("temperature", float, 1.0),
            RequestField("warmth", float, 0.0, minimum=0.0, maximum=2.0),
        ],
    )
    return AsyncFrontend(
        core,
        tokenizer,
        intake,
        ChatTemplate.load(CHECKPOINT, special_tokens=tokenizer.special_tokens),
        parsers
        or AnswerParsers(ParserChoice(ThinkParser, SOURCE), ParserChoice(BracketParser, SOURCE)),
        "demo",
        {"pirate": AdapterRef("pirate", "adapters/pirate", "c0ffee")},
        MAX_MODEL_LEN,
    )


@pytest.fixture(scope="module")
def serve(tokenizer: Tokenizer) -> Iterator[Serve]:
    """Start servers; stop all of them at the end of the module."""
    running: list[Served] = []

    def start(*, parsers: AnswerParsers | None = None, **settings: Any) -> Served:
        core = ScriptedCore(tokenizer)
        frontend = make_frontend(tokenizer, core, parsers)
        options = ServerSettings(**{"port": 0, "shutdown_timeout_s": 5.0} | settings)
        ready = threading.Event()
        urls: list[str] = []
        server = HTTPServer(
            frontend,
            options,
            lambda: [{"name": "scripted", "state": "loaded"}],
            lambda url: (urls.append(url), ready.set()),
        )
        thread = threading.Thread(target=server.run, args=([listening_socket(options)],))
        thread.start()
        assert ready.wait(10)
        running.append(Served(urls[0], core, frontend, server, thread))
        return running[-1]

    yield start
    for served in running:
        served.server.stop()
        served.server.stop()
    for served in running:
        served.thread.join(10)
        assert not served.thread.is_alive()


@pytest.fixture(scope="module")
def module_server(serve: Serve) -> Served:
    return serve()


@pytest.fixture
def served(module_server: Served) -> Served:
    """The module's server, its script empty."""
    core = module_server.core
    core.replies, core.step_s, core.tokens_per_step, core.max_queued = {}, 0.0, 1, 1000
    core.requests.clear()
    core.aborted.clear()
    return module_server


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    """OpenAI's own client, which checks the types of every answer."""
    with OpenAI(
        base_url=f"{served.url}/v1",
        api_key="none",
        max_retries=0,
        timeout=20,
        _strict_response_validation=True,
    ) as made:
        yield made


@pytest.fixture
def wait_for() -> Callable[..., bool]:
    """Wait until a condition holds; return whether it did."""

    def wait(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(0.005)
        return False

    return wait
