"""Offline, the caller's thread runs the steps: no event loop and no thread of ours.

All prompts are checked before the first one runs. Then as many as the engine's queue holds are in
flight. A request that fails ends alone: the other prompts are computed to the end, and each prompt
has its output or its error. Whatever ends the call early (Ctrl-C, the engine's death) leaves the
engine clean for the next one. Calls of several threads take turns.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from quire.errors import (
    EngineDeadError,
    InvalidRequestError,
    PromptsError,
    QuireError,
    RequestFailedError,
)
from quire.frontend.completions.completion import PromptState
from quire.frontend.dispatch.engine_client import EngineCoreClient
from quire.frontend.dispatch.shared_core import SharedCore
from quire.frontend.intake.intake import Intake
from quire.frontend.intake.request_hooks import RequestHook
from quire.frontend.text.tokenizer import Tokenizer
from quire.messages import (
    AdapterRef,
    Control,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
    EngineStats,
)
from quire.outputs import Prompt, RequestOutput
from quire.process.traceback_text import with_cause
from quire.sampling_params import SamplingParams

MAX_IN_FLIGHT = 1024
MAX_TOLD = 8  # failures in the message of one error

T = TypeVar("T")
Outcome = RequestOutput | QuireError  # of one prompt
Finish = Callable[[int, RequestOutput], None]  # what is done with the output of a prompt, by index


logger = logging.getLogger(__name__)


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
        prompts: Sequence[Prompt | QuireError],
        params: SamplingParams | Sequence[SamplingParams],
        *,
        adapters: Sequence[AdapterRef | QuireError | None] | AdapterRef | QuireError | None = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        return_errors: bool = False,
        finish: Finish | None = None,
        use_progress: bool = False,
    ) -> list[Outcome]:
        """Return what became of each prompt, in order.

        Args:
            prompts: Each as `Intake.admit` takes it; one that cannot even be asked is its error.
            params: For all prompts, or one for each.
            adapters: For all prompts, or one for each; one that cannot be used is its error.
            priority: For all prompts, or one for each; smaller goes first.
            timeout_s: Seconds that each may take, for all prompts, or one for each.
            return_errors: Compute what can be, and return errors in the places of their prompts.
            finish: Called with each output; what it raises becomes the prompt's error.
            use_progress: Show a progress bar, on a terminal.

        Raises:
            InvalidRequestError: An argument has another number of entries than there are prompts.
            PromptsError: Without `return_errors`: prompts were refused, and then nothing ran; or
                some failed, after all others came to their end.
            EngineDeadError: The engine cannot go on, or was closed; also while this call runs.
        """
        each_params = _for_each(params, len(prompts), "sampling_params")
        each_adapter = _for_each(adapters, len(prompts), "lora_request")
        each_priority = _for_each(priority, len(prompts), "priority")
        each_timeout_s = _for_each(timeout_s, len(prompts), "timeout_s")
        asked = zip(prompts, each_params, each_adapter, each_priority, each_timeout_s, strict=True)
        with self._core.turn() as core:
            tasks = [self._admit(*each) for each in asked]
            if return_errors or not any(task.error for task in tasks):
                with _progress(len(prompts), use_progress) as show:
                    _Run(core, tasks, self._max_in_flight).to_the_end(show)
                for index, task in enumerate(tasks):
                    task.finish(index, finish)
        errors = {index: task.error for index, task in enumerate(tasks) if task.error}
        if errors and not return_errors:
            raise _summary([task.output for task in tasks], errors) from next(iter(errors.values()))
        return [task.error or task.whole_output() for task in tasks]

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
        prompt: Prompt | QuireError,
        params: SamplingParams,
        adapter: AdapterRef | QuireError | None,
        priority: int,
        timeout_s: float | None,
    ) -> "_Task":
        """Check a prompt; one that is refused has its error."""
        try:
            for given in (prompt, adapter):
                if isinstance(given, QuireError):
                    raise given
            admission = self._intake.admit(
                prompt,  # type: ignore[arg-type]
                params,
                adapter=adapter,  # type: ignore[arg-type]
                priority=priority,
                timeout_s=timeout_s,
            )
        except QuireError as error:
            return _Task(error=error)
        return _Task(PromptState(admission, self._tokenizer, self._finished_hooks))


@dataclass(slots=True)
class _Task:
    """One prompt of a call.

    Attributes:
        answers: Its completions, as they grow; None if it was refused.
        output: All of them, at the end; None if it failed.
        error: Why it failed; of several completions the first failure.
    """

    answers: PromptState | None = None
    output: RequestOutput | None = None
    error: QuireError | None = None

    @property
    def requests(self) -> Sequence[EngineRequest]:
        """What the engine is asked."""
        return () if self.answers is None else self.answers.admission.requests

    def fail(self, error: QuireError) -> None:
        """Keep the first failure."""
        self.error = self.error or error

    def finish(self, index: int, finish: Finish | None) -> None:
        """Take the output; that of a failed prompt goes with its error."""
        if self.answers is None:
            return
        try:
            output = self.answers.result()
        except Exception as error:  # ours, but only this prompt may suffer from it
            logger.exception("prompt %d: a completion could not be decoded", index)
            self.fail(_undecodable(error))
            return
        try:
            if finish is not None:
                finish(index, output)
        except QuireError as error:
            self.fail(error)
        if self.error is None:
            self.output = output
        else:
            self.error.output = output

    def whole_output(self) -> RequestOutput:
        """Return the output of a prompt that did not fail."""
        if self.output is None:
            raise RuntimeError("a prompt has neither an output nor an error")
        return self.output


class _Run:
    """One call: what waits, and what the engine has."""

    def __init__(self, core: SharedCore, tasks: Sequence[_Task], max_in_flight: int) -> None:
        self._core = core
        self._waiting = deque((request, task) for task in tasks for request in task.requests)
        self._in_flight: dict[str, _Task] = {}
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
            request, task = self._waiting.popleft()
            self._in_flight[request.request_id] = task
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
            task = self._in_flight.get(output.request_id)
            if task is None or task.answers is None or not self._ends(task, task.answers, output):
                continue
            del self._in_flight[output.request_id]
            num_finished += task.answers.is_finished
        return num_finished

    def _ends(self, task: _Task, answers: PromptState, output: EngineOutput) -> bool:
        """Take what a step said of one completion; whether that is over. A failure ends it."""
        try:
            answer = answers.take(output)
        except QuireError as error:
            task.fail(error)
            return True
        except Exception as error:  # ours, but only this prompt may suffer from it
            logger.exception("request %s could not be decoded", output.request_id)
            task.fail(_undecodable(error))
            self._core.abort([output.request_id])
            return True
        if answer.must_abort:
            self._core.abort([output.request_id])
        return answer.finish_reason is not None


def _undecodable(error: Exception) -> RequestFailedError:
    """Return the failure of a completion whose tokens could not be made text."""
    failure = RequestFailedError("the completion could not be decoded")
    failure.__cause__ = error
    return failure


def _summary(
    outputs: Sequence[RequestOutput | None], errors: Mapping[int, QuireError]
) -> PromptsError:
    """Return the error that names each prompt that failed, and why."""
    reasons = [f"prompt {index}: {with_cause(error)}" for index, error in errors.items()]
    told = "; ".join(islice(reasons, MAX_TOLD))
    more = f"; and {len(reasons) - MAX_TOLD} more" if len(reasons) > MAX_TOLD else ""
    return PromptsError(
        f"{len(errors)} of {len(outputs)} prompt(s) failed: {told}{more}",
        outputs=outputs,
        errors=errors,
    )


def _for_each(value: T | Sequence[T], num_prompts: int, name: str) -> Sequence[T]:
    """Return one value for each prompt."""
    if isinstance(value, str):
        raise InvalidRequestError(f"{name} cannot be the text {value!r}", param=name)
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
