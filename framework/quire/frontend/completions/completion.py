"""Completions as they grow: engine outputs in, text and deltas out.

A `CompletionState` is one completion so far, a `PromptState` the n completions of one prompt. Stop
strings are found here, after detokenization; `Dispatch` (or `OfflineFrontend`) then aborts the
request in the engine.
"""

import logging
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from quire.errors import QuireError
from quire.frontend.completions.logprob_row import LogprobRow
from quire.frontend.dispatch.engine_client import error_of
from quire.frontend.intake.intake import AdmittedPrompt
from quire.frontend.intake.request_hooks import RequestHook
from quire.frontend.metrics.request_clock import RequestClock
from quire.frontend.metrics.request_observer import RequestObserver
from quire.frontend.text.stop_strings import StoppedStream
from quire.frontend.text.text_stream import TextStream
from quire.frontend.text.tokenizer import Tokenizer
from quire.messages import (
    AdapterRef,
    CompletedRequest,
    EngineOutput,
    EngineRequest,
    FinishReason,
    TokenLogprobs,
)
from quire.outputs import (
    CompletionOutput,
    Delta,
    Logprob,
    LoRARequest,
    PromptLogprobs,
    RequestOutput,
    SampleLogprobs,
)

logger = logging.getLogger(__name__)


class _Emitted(NamedTuple):
    """The parts of a completion that its deltas have returned so far."""

    num_texts: int = 0
    num_tokens: int = 0
    num_prompt_logprobs: int = 0


class CompletionState:
    """The state of one completion.

    Args:
        request: Request to the engine.
        tokenizer: Tokenizer of the model.
        shown: Special tokens that the text has in any case.

    Attributes:
        request: Request to the engine.
        finish_reason: Reason why it finished; None while it runs.
        must_abort: True if the text ended at a stop string, so the engine's request must be
            aborted.
        num_cached_tokens: Number of prompt tokens that were found in the prefix cache.
        found_logprob: Cumulative log probability by a beam search, if one found the completion.
    """

    def __init__(
        self, request: EngineRequest, tokenizer: Tokenizer, shown: frozenset[int] = frozenset()
    ) -> None:
        self.request = request
        self.finish_reason: FinishReason | None = None
        self.must_abort = False
        self.num_cached_tokens = 0
        self.found_logprob: float | None = None
        self._tokenizer = tokenizer
        params = request.params
        self._stream: TextStream = tokenizer.text_stream(
            request.token_ids, params.skip_special_tokens, shown
        )
        self._stopped: StoppedStream | None = None  # the same stream, if there are stop strings
        if params.stop or params.stop_regex:
            self._stream = self._stopped = StoppedStream(self._stream, params)
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._num_decoded = 0  # of `_token_ids`, including a hidden stop token
        self._logprobs: list[LogprobRow] = []
        self._prompt_logprobs: list[LogprobRow | None] = []
        self._stop_reason: int | str | None = None
        self._emitted = _Emitted()

    def apply(self, output: EngineOutput) -> None:
        """Add the output of a step; it is detokenized on demand, or at once to find stop strings.

        Raises:
            RequestError: The engine reports that the request failed.
        """
        if output.error is not None:
            self.finish_reason = "error"
            raise error_of(output.error)
        if output.num_cached_tokens > self.num_cached_tokens:
            self.num_cached_tokens = output.num_cached_tokens
        if output.logprobs:
            is_ranked = not self.request.params.logprob_token_ids
            self._logprobs += [self._row(row, is_ranked=is_ranked) for row in output.logprobs]
        self._token_ids += output.token_ids
        if self.request.params.prompt_logprobs is not None:
            self._add_prompt_logprobs(output)
        if output.finish_reason is not None:
            self._finish(output, output.finish_reason)
        elif self._stopped is not None:
            self._decode()
            self.must_abort = self._ends_at_stop_string()

    def detokenize(self) -> None:
        """Add the text of tokens that have none yet, so that `delta` has less to do."""
        self._decode()

    def abort(self) -> None:
        """End the completion with reason "abort"; text held back is part of its last delta."""
        self._decode()
        self._texts.append(self._stream.close())
        self.finish_reason = "abort"

    def stop(self, unread: Sequence[Delta]) -> None:
        """End the completion with reason "stop", where its reader wants no more of it.

        Args:
            unread: Last deltas that were returned, which the reader has not read: they are removed.
        """
        num_tokens = len(self._token_ids) - sum(len(delta.token_ids) for delta in unread)
        del self._token_ids[num_tokens:], self._logprobs[num_tokens:]
        text = "".join(self._texts)
        self._texts = [text[: len(text) - sum(len(delta.text) for delta in unread)]]
        self._emitted = _Emitted(1, num_tokens, len(self._prompt_logprobs))
        self.finish_reason, self._stop_reason = "stop", None

    def delta(self) -> Delta:
        """Return everything added since the last delta."""
        self._decode()
        emitted = self._emitted
        self._emitted = _Emitted(len(self._texts), len(self._token_ids), len(self._prompt_logprobs))
        return Delta(
            index=self.request.child,
            text="".join(self._texts[emitted.num_texts :]),
            token_ids=self._token_ids[emitted.num_tokens :],
            logprobs=self._logprobs_from(emitted.num_tokens),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            num_cached_tokens=self.num_cached_tokens,
            prompt_logprobs=[*self._prompt_logprobs[emitted.num_prompt_logprobs :]] or None,
        )

    def output(self) -> CompletionOutput:
        """Return the completion so far."""
        self._decode()
        return CompletionOutput(
            index=self.request.child,
            text="".join(self._texts),
            token_ids=list(self._token_ids),
            logprobs=self._logprobs_from(0),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            cumulative_logprob=self._cumulative_logprob(),
        )

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the completion so far."""
        return len(self._token_ids)

    @property
    def prompt_logprobs(self) -> Sequence[LogprobRow | None] | None:
        """Log probabilities of the prompt, as far as computed; None if not requested."""
        return None if self.request.params.prompt_logprobs is None else self._prompt_logprobs

    def _decode(self, num_hidden: int = 0) -> None:
        """Detokenize new tokens, except the last `num_hidden`; drop tokens after a stop string.

        A token that cannot be decoded is tried only once, so that the completion can still be
        ended.
        """
        stopped = self._stopped
        first, self._num_decoded = self._num_decoded, len(self._token_ids)
        for index in range(first, len(self._token_ids) - num_hidden):
            self._texts.append(self._stream.feed(self._token_ids[index]))
            if stopped is not None and stopped.stop_string is not None:
                del self._token_ids[index + 1 :], self._logprobs[index + 1 :]
                self._num_decoded = len(self._token_ids)
                break

    def _finish(self, output: EngineOutput, reason: FinishReason) -> None:
        """Apply the engine's finish reason, unless a stop string ended the completion before."""
        self._decode(num_hidden=int(self._ends_with_hidden_stop(output)))
        self._texts.append(self._stream.close())
        if self._ends_at_stop_string():
            return
        self.finish_reason = reason
        if reason == "stop" and output.token_ids:
            is_requested = output.token_ids[-1] in self.request.params.stop_token_ids
            self._stop_reason = output.token_ids[-1] if is_requested else None

    def _ends_at_stop_string(self) -> bool:
        """Return whether the text ended at a stop string; if so, set the finish reason."""
        found = None if self._stopped is None else self._stopped.stop_string
        if found is not None:
            self._stop_reason, self.finish_reason = found, "stop"
        return found is not None

    def _ends_with_hidden_stop(self, output: EngineOutput) -> bool:
        """Return whether the last token ended the completion and is left out of the text."""
        ended = output.finish_reason == "stop" and bool(output.token_ids)
        is_stop_token = ended and output.token_ids[-1] in self.request.stop_token_ids
        return is_stop_token and not self.request.params.include_stop_str_in_output

    def _add_prompt_logprobs(self, output: EngineOutput) -> None:
        """Add log probabilities of prompt tokens; the first token has none."""
        if not self._prompt_logprobs:
            self._prompt_logprobs.append(None)
        self._prompt_logprobs += [self._row(row) for row in output.prompt_logprobs or ()]

    def _row(self, row: TokenLogprobs, *, is_ranked: bool = True) -> LogprobRow:
        return LogprobRow(row, self._tokenizer.token_text, is_ranked=is_ranked)

    def _cumulative_logprob(self) -> float | None:
        """Return the sum of the log probabilities of the tokens; None without any."""
        if self.found_logprob is not None or self.request.params.logprobs is None:
            return self.found_logprob
        return math.fsum(row.chosen_logprob for row in self._logprobs)

    def _logprobs_from(self, start: int) -> SampleLogprobs | None:
        """Return the log probabilities of the tokens from `start` on; None if not requested."""
        params = self.request.params
        if params.logprobs is None:
            return None
        rows = self._logprobs[start:]
        return rows if params.flat_logprobs else [row.as_dict() for row in rows]


class PromptState:
    """The state of the n completions of one prompt.

    Args:
        admission: The prompt and its requests.
        tokenizer: Tokenizer of the model.
        finished_hooks: `request_finished` hooks of the plugins; their errors are logged.
        observer: Observer of the requests that have ended; None for a new one.
        http_request_id: Id of the HTTP request that it came with.

    Attributes:
        records: Records of the requests that have ended.
    """

    def __init__(
        self,
        admission: AdmittedPrompt,
        tokenizer: Tokenizer,
        finished_hooks: Sequence[RequestHook] = (),
        observer: RequestObserver | None = None,
        http_request_id: str | None = None,
    ) -> None:
        self.admission = admission
        self.records: list[CompletedRequest] = []
        self._observer = observer or RequestObserver()
        self._http_request_id = http_request_id
        self._finished_hooks = finished_hooks
        self._tokenizer = tokenizer
        self._completions = {
            request.request_id: CompletionState(
                request, tokenizer, admission.prompt.shown_special_tokens
            )
            for request in admission.requests
        }
        metrics = self._observer.metrics
        self._clocks = {each.request_id: RequestClock(each, metrics) for each in admission.requests}
        self._first = self._completions[admission.requests[0].request_id]

    @property
    def adapter_name(self) -> str | None:
        """Name of the adapter; None: it is the model's own."""
        adapter = self.admission.requests[0].adapter
        return None if adapter is None else adapter.name

    @property
    def is_waiting(self) -> bool:
        """Whether no output has come yet."""
        return all(clock.is_waiting for clock in self._clocks.values())

    @property
    def is_finished(self) -> bool:
        """Whether every completion has finished."""
        return all(
            completion.finish_reason is not None for completion in self._completions.values()
        )

    @property
    def unfinished_ids(self) -> list[str]:
        """Ids of the engine requests that have not finished."""
        return [
            i for i, completion in self._completions.items() if completion.finish_reason is None
        ]

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the completions so far."""
        return sum(completion.num_tokens for completion in self._completions.values())

    def apply(self, output: EngineOutput, now_s: float | None = None) -> list[CompletionState]:
        """Add the output of a step to its completion; return that completion.

        A beam search has one completion until its last output; then it has those that it found.

        Args:
            output: The output.
            now_s: Time of its arrival, on the monotonic clock; None: now.

        Raises:
            RequestError: The engine reports that the request failed.
        """
        completion = self._completions[output.request_id]
        self._clocks[output.request_id].take(output, now_s or time.monotonic())
        try:
            found = self._apply_to(completion, output)
        except QuireError as error:
            self._end([completion], output, error)
            raise
        if found[0].finish_reason is not None:
            self._end(found, output)
        return found

    def _apply_to(self, completion: CompletionState, output: EngineOutput) -> list[CompletionState]:
        if output.hypotheses is None:
            completion.apply(output)
            return [completion]
        del self._completions[output.request_id]
        for child, hypothesis in enumerate(output.hypotheses):
            request = msgspec.structs.replace(completion.request, child=child)
            found = CompletionState(
                request, self._tokenizer, self.admission.prompt.shown_special_tokens
            )
            found.found_logprob = hypothesis.cumulative_logprob
            found.apply(
                EngineOutput(
                    request_id=output.request_id,
                    token_ids=hypothesis.token_ids,
                    logprobs=hypothesis.logprobs,
                    finish_reason=hypothesis.finish_reason,
                    stop_reason=hypothesis.stop_reason,
                    num_cached_tokens=output.num_cached_tokens,
                )
            )
            self._completions[f"{output.request_id}/{child}"] = found
        found_ones = list(self._completions.values())
        self._first = found_ones[0]
        return found_ones

    def abort(self, error: QuireError | None = None) -> list[Delta]:
        """Abort the unfinished completions; return the last delta of each.

        Args:
            error: The error that ended them; None: the reader has left.
        """
        unfinished = self.unfinished_ids
        return [self._abort(self._completions[request_id], error) for request_id in unfinished]

    def stop(self, index: int, unread: Sequence[Delta]) -> str | None:
        """End one completion, of which its reader wants no more.

        Args:
            index: Number of the completion.
            unread: Its last deltas, which the reader has not read.

        Returns:
            Id of the engine request that must be aborted; None if it has ended by itself.
        """
        (completion,) = (c for c in self._completions.values() if c.request.child == index)
        has_ended, request_id = completion.finish_reason is not None, completion.request.request_id
        completion.stop(unread)
        if has_ended:
            return None
        self._end(
            [completion], EngineOutput(request_id=request_id, token_ids=[], finish_reason="stop")
        )
        return request_id

    def outputs(self) -> list[CompletionOutput]:
        """Return the completions so far: all of them, or the n best of `best_of`."""
        outputs = [completion.output() for completion in self._completions.values()]
        params = self.admission.requests[0].params
        return outputs if params.best_of is None else self._best(outputs, params.n)

    @property
    def prompt_logprobs(self) -> PromptLogprobs | None:
        """Log probabilities of the prompt, as far as computed; None if not requested."""
        rows = self._first.prompt_logprobs
        return None if rows is None else list(rows)

    def result(self) -> RequestOutput:
        """Return all completions and log probabilities so far, as plain objects."""
        first, rows = self._first, self._first.prompt_logprobs
        prompt, adapter = self.admission.prompt, self.admission.requests[0].adapter
        return RequestOutput(
            request_id=self.admission.request_id,
            prompt=prompt.text,
            prompt_token_ids=list(prompt.token_ids),
            outputs=self.outputs(),
            finished=self.is_finished,
            prompt_logprobs=None if rows is None else self._shown(rows),
            num_cached_tokens=first.num_cached_tokens,
            lora_request=None if adapter is None else _lora_request(adapter),
        )

    def _best(self, outputs: list[CompletionOutput], n: int) -> list[CompletionOutput]:
        """Return the n completions with the largest cumulative log probability, numbered anew."""
        ranked = sorted(outputs, key=lambda output: -(output.cumulative_logprob or 0.0))
        hidden = {"logprobs": None} if self.admission.hides_logprobs else {}
        return [
            msgspec.structs.replace(output, index=index, **hidden)
            for index, output in enumerate(ranked[:n])
        ]

    def _shown(self, rows: Sequence[LogprobRow | None]) -> PromptLogprobs:
        is_flat = self.admission.requests[0].params.flat_logprobs
        return list(rows) if is_flat else [*map(_plain, rows)]

    def _abort(self, completion: CompletionState, error: QuireError | None) -> Delta:
        completion.abort()
        last = EngineOutput(
            request_id=completion.request.request_id, token_ids=[], finish_reason="abort"
        )
        self._end([completion], last, error)
        return completion.delta()

    def _end(
        self,
        completions: Sequence[CompletionState],
        output: EngineOutput,
        error: QuireError | None = None,
    ) -> None:
        """Report the end of a request, which has several completions if it is a beam search."""
        self._run_hooks(completions[0].request, output)
        record = self._record(completions, error)
        self.records.append(record)
        self._observer.add(record)

    def _record(
        self, completions: Sequence[CompletionState], error: QuireError | None
    ) -> CompletedRequest:
        first = completions[0]
        request, clock = first.request, self._clocks[first.request.request_id]
        return CompletedRequest(
            request_id=request.request_id,
            child=request.child,
            client=request.client or None,
            http_request_id=self._http_request_id,
            model=self._observer.model_name,
            adapter=None if request.adapter is None else request.adapter.name,
            num_prompt_tokens=len(request.token_ids),
            num_cached_tokens=first.num_cached_tokens,
            num_completion_tokens=sum(each.num_tokens for each in completions),
            finish_reason="error" if error is not None else first.finish_reason or "abort",
            error_code=None if error is None else error.code,
            arrival_s=request.arrival_s,
            queue_s=clock.queue_s,
            time_to_first_token_s=clock.time_to_first_token_s,
            decode_s=clock.decode_s,
            total_s=time.monotonic() - request.arrival_s,
            max_tokens=request.max_tokens,
            n=request.params.n,
            replica=clock.replica,
        )

    def _run_hooks(self, request: EngineRequest, output: EngineOutput) -> None:
        for source, hook in self._finished_hooks:
            _call_safely(source, hook, request, output)


def _plain(row: LogprobRow | None) -> dict[int, Logprob] | None:
    return None if row is None else row.as_dict()


def _lora_request(adapter: AdapterRef) -> LoRARequest:
    return LoRARequest(adapter.name, lora_path=adapter.path)


def _call_safely(source: Any, hook: Any, request: EngineRequest, output: EngineOutput) -> None:
    try:
        hook(request=request, output=output)
    except Exception:  # a plugin's error, which must not affect the completion
        logger.exception("plugin %s failed in request_finished", source)
