"""Offline, the caller's thread runs the steps: no event loop and no thread of ours.

All prompts are checked before the first one runs. Then as many as the engine's queue holds are in
flight; whatever ends this early (an error, Ctrl-C) leaves the engine clean for the next call.
Calls of several threads take turns.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from quire.errors import EngineDeadError, InvalidRequestError
from quire.frontend.engine_client import EngineCoreClient
from quire.frontend.intake import Intake
from quire.frontend.output import Answers
from quire.frontend.request_hooks import RequestHook
from quire.frontend.shared_core import SharedCore
from quire.frontend.tokenizer import Tokenizer
from quire.messages import AdapterRef, Control, EngineOutputs, EngineStats
from quire.outputs import Prompt, RequestOutput
from quire.sampling_params import SamplingParams

MAX_IN_FLIGHT = 1024

T = TypeVar("T")


class BatchFrontend:
    """Generates for lists of prompts; any thread may call.

    Args:
        core: The engine; nobody else may call it from now on.
        tokenizer: The model's.
        intake: Checks requests.
        finished_hooks: The plugins' `request_finished`.
        max_in_flight: Requests that the engine has at the same time, at most; it must queue that
            many, as it refuses what is too much for it.
    """

    def __init__(
        self,
        core: EngineCoreClient,
        tokenizer: Tokenizer,
        intake: Intake,
        *,
        finished_hooks: Sequence[RequestHook] = (),
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self._core = SharedCore(core)
        self._tokenizer = tokenizer
        self._intake = intake
        self._finished_hooks = tuple(finished_hooks)
        self._max_in_flight = max_in_flight

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        adapters: Sequence[AdapterRef | None] | AdapterRef | None = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        use_progress: bool = False,
    ) -> list[RequestOutput]:
        """Return the answers to each prompt, in order.

        Args:
            prompts: Each as `Intake.admit` takes it.
            params: For all prompts, or one for each.
            adapters: For all prompts, or one for each.
            priority: For all prompts, or one for each; smaller goes first.
            timeout_s: Seconds that each may take, for all prompts, or one for each.
            use_progress: Show a progress bar, on a terminal.

        Raises:
            RequestError: A prompt or its parameters are wrong (then nothing ran), or a request
                failed while it ran (then the others are aborted).
            EngineDeadError: The engine cannot go on, or was closed; also while this call runs.
        """
        each_params = _for_each(params, len(prompts), "sampling_params")
        each_adapter = _for_each(adapters, len(prompts), "lora_request")
        each_priority = _for_each(priority, len(prompts), "priority")
        each_timeout_s = _for_each(timeout_s, len(prompts), "timeout_s")
        asked = zip(prompts, each_params, each_adapter, each_priority, each_timeout_s, strict=True)
        with self._core.turn() as core:
            every = [self._admit(*each) for each in asked]
            run = _Run(core, every, self._max_in_flight)
            with _progress(len(prompts), use_progress) as show:
                run.to_the_end(show)
        return [answers.result() for answers in every]

    def stats(self) -> EngineStats:
        """Return a few numbers about the engine, between two calls.

        Raises:
            EngineDeadError: The engine was closed or has died.
        """
        with self._core.turn() as core:
            return core.stats()

    def control(self, command: Control) -> Any:
        """Have the engine do something between two calls; returns and raises what it does."""
        with self._core.turn() as core:
            return core.control(command)

    def close(self) -> None:
        """End the call that runs after its step, and shut the engine down. May be called twice."""
        self._core.close()

    def _admit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        adapter: AdapterRef | None,
        priority: int,
        timeout_s: float | None,
    ) -> Answers:
        admission = self._intake.admit(
            prompt, params, adapter=adapter, priority=priority, timeout_s=timeout_s
        )
        return Answers(admission, self._tokenizer, self._finished_hooks)


class _Run:
    """One call: what waits, and what the engine has."""

    def __init__(self, core: SharedCore, every: Sequence[Answers], max_in_flight: int) -> None:
        self._core = core
        self._waiting = deque(
            (request, answers) for answers in every for request in answers.admission.requests
        )
        self._in_flight: dict[str, Answers] = {}
        self._max_in_flight = max_in_flight

    def to_the_end(self, show: Progress) -> None:
        task = show.task_ids[0]
        try:
            while self._waiting or self._in_flight:
                self._add()
                if num_finished := self._take(self._step()):
                    show.advance(task, num_finished)
        finally:
            if self._in_flight:
                self._core.abort(list(self._in_flight))

    def _add(self) -> None:
        while self._waiting and len(self._in_flight) < self._max_in_flight:
            request, answers = self._waiting.popleft()
            self._in_flight[request.request_id] = answers
            self._core.add(request)

    def _step(self) -> EngineOutputs | None:
        if not self._core.has_work():
            raise EngineDeadError(
                f"the engine has no work left, but {len(self._in_flight)} requests are not finished"
            )
        return self._core.step()

    def _take(self, outputs: EngineOutputs | None) -> int:
        """Take what a step said; return how many prompts it finished."""
        num_finished = 0
        if outputs is None:
            return num_finished
        for output in outputs.outputs:
            answers = self._in_flight.get(output.request_id)
            if answers is None:
                continue
            answer = answers.take(output)
            if answer.finish_reason is not None:
                if answer.must_abort:
                    self._core.abort([output.request_id])
                del self._in_flight[output.request_id]
                num_finished += answers.is_finished
        return num_finished


def _for_each(value: T | Sequence[T], num_prompts: int, name: str) -> Sequence[T]:
    """Return one value for each prompt."""
    if not isinstance(value, list | tuple):
        return [value] * num_prompts  # type: ignore[list-item]
    if len(value) != num_prompts:
        raise InvalidRequestError(
            f"{name} has {len(value)} entries for {num_prompts} prompts", param=name
        )
    return value


@contextmanager
def _progress(num_prompts: int, is_shown: bool) -> Iterator[Progress]:
    columns = (TextColumn("generating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=not is_shown) as progress:
        progress.add_task("generate", total=num_prompts)
        yield progress
