"""The frontend for offline batches: the caller's thread runs the engine's steps.

All prompts are checked before the first one runs. Then as many requests are in flight as the
engine's queue holds. A request that fails does not affect the others: they run to completion, and
each prompt has its output or its error. If a call ends early (Ctrl-C, the engine's death), its
requests are aborted. Calls of several threads run one after another.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from quire.errors import EngineDeadError, InvalidRequestError, PromptsError, QuireError
from quire.frontend.completions.completion import PromptState
from quire.frontend.dispatch.engine_client import EngineCoreClient, failure_of
from quire.frontend.dispatch.shared_core import SharedCore
from quire.frontend.intake.intake import Intake
from quire.frontend.intake.request_hooks import RequestHook
from quire.frontend.metrics.request_observer import RequestObserver
from quire.frontend.text.tokenizer import Tokenizer
from quire.messages import (
    AdapterRef,
    EngineOutput,
    EngineOutputs,
    EngineRequest,
)
from quire.outputs import Prompt, RequestOutput
from quire.process.traceback_text import with_cause
from quire.sampling_params import BeamSearchParams, SamplingParams

MAX_IN_FLIGHT = 1024
MAX_LISTED = 8  # failures in one error message

T = TypeVar("T")
Outcome = RequestOutput | QuireError  # of one prompt
Params = SamplingParams | BeamSearchParams
Finish = Callable[[int, RequestOutput], None]  # postprocessing: a prompt's index and its output


class OfflineFrontend:
    """Generates for lists of prompts; any thread may call it.

    Args:
        core: Engine core; from now on called by this object alone.
        tokenizer: Tokenizer of the model.
        intake: Validation of requests.
        finished_hooks: `request_finished` hooks of the plugins.
        observer: Observer of the requests that have ended; None for a new one.
        max_in_flight: Largest number of requests in the engine at the same time. Its queue must
            hold as many, since it refuses requests beyond that.

    Attributes:
        core: The engine core, shared by the threads that call.
    """

    def __init__(
        self,
        core: EngineCoreClient,
        tokenizer: Tokenizer,
        intake: Intake,
        *,
        finished_hooks: Sequence[RequestHook] = (),
        observer: RequestObserver | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        self.core = SharedCore(core)
        self._tokenizer = tokenizer
        self._intake = intake
        self._finished_hooks = tuple(finished_hooks)
        self._observer = observer or RequestObserver()
        self._max_in_flight = max_in_flight

    def generate(
        self,
        prompts: Sequence[Prompt | QuireError],
        params: Params | Sequence[Params],
        *,
        adapters: Sequence[AdapterRef | QuireError | None] | AdapterRef | QuireError | None = None,
        priority: Sequence[int] | int = 0,
        timeout_s: Sequence[float | None] | float | None = None,
        return_errors: bool = False,
        finish: Finish | None = None,
        use_progress: bool = False,
    ) -> list[Outcome]:
        """Return the output or the error of each prompt, in order.

        Args:
            prompts: Prompts as for `Intake.admit`; an error in place of a prompt that could not be
                prepared.
            params: Sampling parameters, for all prompts or one for each.
            adapters: Adapters, for all prompts or one for each; an error in place of one that
                cannot be used.
            priority: Priority, smaller first; for all prompts or one for each.
            timeout_s: Seconds that each prompt may take; for all prompts or one for each.
            return_errors: Run the valid prompts, and return errors in place of outputs.
            finish: Function called with each output; an error that it raises becomes the prompt's.
            use_progress: Show a progress bar, on a terminal.

        Raises:
            InvalidRequestError: The number of entries of an argument differs from the number of
                prompts.
            PromptsError: Without `return_errors`: prompts were refused, and nothing ran; or some
                failed, and all others finished.
            EngineDeadError: The engine has died or was closed, before or during the call.
        """
        each_params: Sequence[Params] = for_each(params, len(prompts), "sampling_params")
        each_adapter = for_each(adapters, len(prompts), "lora_request")
        each_priority = for_each(priority, len(prompts), "priority")
        each_timeout_s = for_each(timeout_s, len(prompts), "timeout_s")
        arguments = zip(
            prompts, each_params, each_adapter, each_priority, each_timeout_s, strict=True
        )
        with self.core.turn() as core:
            tasks = [self._admit(index, *each) for index, each in enumerate(arguments)]
            if return_errors or not any(task.error for task in tasks):
                with _progress(len(prompts), use_progress) as progress:
                    _BatchRun(core, tasks, self._max_in_flight).run_to_completion(progress)
                for task in tasks:
                    task.finish(finish)
        errors = {task.index: task.error for task in tasks if task.error}
        if errors and not return_errors:
            raise _summary([task.output for task in tasks], errors) from next(iter(errors.values()))
        return [task.error or task.whole_output() for task in tasks]

    def _admit(
        self,
        index: int,
        prompt: Prompt | QuireError,
        params: Params,
        adapter: AdapterRef | QuireError | None,
        priority: int,
        timeout_s: float | None,
    ) -> "_Task":
        """Check a prompt; return its task, or a task with the error if it is refused."""
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
            return _Task(index, error=error)
        completions = PromptState(admission, self._tokenizer, self._finished_hooks, self._observer)
        return _Task(index, completions)


@dataclass(slots=True)
class _Task:
    """One prompt of a call.

    Attributes:
        index: Index of the prompt.
        completions: State of its completions; None if it was refused.
        output: Output of all completions, at the end; None if it failed.
        error: Error of the prompt, or of its first completion that failed.
    """

    index: int
    completions: PromptState | None = None
    output: RequestOutput | None = None
    error: QuireError | None = None

    @property
    def requests(self) -> Sequence[EngineRequest]:
        """The requests to the engine."""
        return () if self.completions is None else self.completions.admission.requests

    def fail(self, error: QuireError) -> None:
        """Record an error, unless there is one already."""
        self.error = self.error or error

    def fail_decoding(self, error: Exception, request_id: str) -> None:
        """Record the error of an output that could not be applied; log a defect."""
        self.fail(failure_of(error, f"prompt {self.index} (request {request_id})"))

    def finish(self, finish: Finish | None) -> None:
        """Build the output and postprocess it; that of a failed prompt is attached to its error."""
        if self.completions is None:
            return
        try:
            output = self.completions.result()
        except Exception as error:  # noqa: BLE001 - it fails this prompt only, and is logged
            self.fail_decoding(error, self.completions.admission.request_id)
            return
        try:
            if finish is not None:
                finish(self.index, output)
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


class _BatchRun:
    """One call of `generate`: the requests that wait, and those in the engine."""

    def __init__(self, core: SharedCore, tasks: Sequence[_Task], max_in_flight: int) -> None:
        self._core = core
        self._waiting = deque((request, task) for task in tasks for request in task.requests)
        self._in_flight: dict[str, _Task] = {}
        self._max_in_flight = max_in_flight

    def run_to_completion(self, progress: Progress) -> None:
        task = progress.task_ids[0]
        try:
            while self._waiting or self._in_flight:
                self._add_waiting()
                if num_finished := self._apply_outputs(self._step()):
                    progress.advance(task, num_finished)
        finally:
            if self._in_flight:
                self._core.abort(list(self._in_flight))

    def _add_waiting(self) -> None:
        while self._waiting and len(self._in_flight) < self._max_in_flight:
            request, task = self._waiting.popleft()
            self._in_flight[request.request_id] = task
            self._core.add(request)

    def _step(self) -> EngineOutputs | None:
        if not self._core.has_work():
            raise EngineDeadError(
                f"the engine has no work left, but {len(self._in_flight)} requests are unfinished"
            )
        return self._core.step()

    def _apply_outputs(self, outputs: EngineOutputs | None) -> int:
        """Apply the outputs of a step; return the number of prompts that it finished."""
        num_finished = 0
        if outputs is None:
            return num_finished
        for output in outputs.outputs:
            task = self._in_flight.get(output.request_id)
            if (
                task is None
                or task.completions is None
                or not self._apply_output(task, task.completions, output)
            ):
                continue
            del self._in_flight[output.request_id]
            num_finished += task.completions.is_finished
        return num_finished

    def _apply_output(self, task: _Task, completions: PromptState, output: EngineOutput) -> bool:
        """Apply the output of one completion; return whether it finished or failed."""
        try:
            found = completions.apply(output)
        except Exception as error:  # noqa: BLE001 - it fails this request only, and is logged
            task.fail_decoding(error, output.request_id)
            self._core.abort([output.request_id])
            return True
        if found[0].must_abort:
            self._core.abort([output.request_id])
        return found[0].finish_reason is not None


def _summary(
    outputs: Sequence[RequestOutput | None], errors: Mapping[int, QuireError]
) -> PromptsError:
    """Return the error that lists the failed prompts with the reasons."""
    reasons = [f"prompt {index}: {with_cause(error)}" for index, error in errors.items()]
    listed = "; ".join(islice(reasons, MAX_LISTED))
    more = f"; and {len(reasons) - MAX_LISTED} more" if len(reasons) > MAX_LISTED else ""
    return PromptsError(
        f"{len(errors)} of {len(outputs)} prompt(s) failed: {listed}{more}",
        outputs=outputs,
        errors=errors,
    )


def for_each(value: T | Sequence[T], num_prompts: int, name: str) -> Sequence[T]:
    """Return one value for each prompt."""
    if isinstance(value, str):
        raise InvalidRequestError(f"{name} cannot be a string, got {value!r}", param=name)
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
