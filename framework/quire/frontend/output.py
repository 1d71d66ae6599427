"""What the engine says about a request becomes what its caller reads.

An `Answer` is one child's text so far; `Answers` are the n of one prompt. A stop string is found
here, after detokenizing, so it is the frontend that ends such an answer and tells the engine.
"""

import logging
from collections.abc import Sequence
from typing import Any

from quire.errors import QuireError
from quire.frontend.detokenizer import Detokenizer
from quire.frontend.engine_client import error_of
from quire.frontend.intake import Admission, RequestHook
from quire.frontend.logprob_row import LogprobRow
from quire.frontend.tokenizer import Tokenizer
from quire.messages import AdapterRef, EngineOutput, EngineRequest, FinishReason, TokenLogprobs
from quire.outputs import (
    CompletionOutput,
    Delta,
    Logprob,
    LoRARequest,
    PromptLogprobs,
    RequestOutput,
)

logger = logging.getLogger(__name__)


class Answer:
    """One answer, as it grows.

    Attributes:
        request: What the engine was asked.
        finish_reason: None as long as it grows.
        must_abort: The text ended at a stop string, and the engine does not know yet.
    """

    def __init__(self, request: EngineRequest, tokenizer: Tokenizer) -> None:
        self.request = request
        self.finish_reason: FinishReason | None = None
        self.must_abort = False
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, request.token_ids, request.params)
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._prompt_logprobs: list[LogprobRow | None] = []
        self._stop_reason: int | str | None = None
        self._num_cached_tokens = 0

    def take(self, output: EngineOutput) -> Delta:
        """Take what a step added; return it as text.

        Raises:
            RequestError: The engine reports that the request failed.
        """
        if output.error is not None:
            self.finish_reason = "error"
            raise error_of(output.error)
        texts, num_used = self._detokenize(output)
        logprobs = [self._row(row).as_dict() for row in (output.logprobs or ())[:num_used]]
        finish_reason = self._finish(output, texts)
        delta = self._add("".join(texts), output.token_ids[:num_used], logprobs, finish_reason)
        delta.prompt_logprobs = self._read_prompt_logprobs(output)
        return delta

    def abort(self) -> Delta:
        """End the answer from outside; return what was held back."""
        return self._add(self._detokenizer.close(), [], [], "abort")

    def completion(self) -> CompletionOutput:
        """Return the answer so far."""
        return CompletionOutput(
            index=self.request.child,
            text="".join(self._texts),
            token_ids=list(self._token_ids),
            logprobs=None if self.request.params.logprobs is None else list(self._logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
        )

    @property
    def prompt_logprobs(self) -> PromptLogprobs | None:
        """Those of the prompt, as far as they are known; None if nobody asked for them."""
        if self.request.params.prompt_logprobs is None:
            return None
        return [None if row is None else row.as_dict() for row in self._prompt_logprobs]

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose KV was in the cache already."""
        return self._num_cached_tokens

    def _detokenize(self, output: EngineOutput) -> tuple[list[str], int]:
        """Return the texts of the tokens, and how many tokens belong to the answer."""
        self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
        num_shown = len(output.token_ids) - self._ends_with_hidden_stop(output)
        texts = []
        for num_used, token_id in enumerate(output.token_ids[:num_shown], 1):
            texts.append(self._detokenizer.feed(token_id))
            if self._detokenizer.stop_string is not None:
                return texts, num_used
        return texts, len(output.token_ids)

    def _ends_with_hidden_stop(self, output: EngineOutput) -> bool:
        """Whether the last token ended the answer and is not shown."""
        ended = output.finish_reason == "stop" and bool(output.token_ids)
        is_stop_token = ended and output.token_ids[-1] in self.request.stop_token_ids
        return is_stop_token and not self.request.params.include_stop_str_in_output

    def _finish(self, output: EngineOutput, texts: list[str]) -> FinishReason | None:
        """Decide whether the answer is over; add what was held back to the texts."""
        if output.finish_reason is not None and self._detokenizer.stop_string is None:
            texts.append(self._detokenizer.close())
        if self._detokenizer.stop_string is not None:
            self._stop_reason = self._detokenizer.stop_string
            self.must_abort = output.finish_reason is None
            return "stop"
        if output.finish_reason == "stop" and output.token_ids:
            asked_for = output.token_ids[-1] in self.request.params.stop_token_ids
            self._stop_reason = output.token_ids[-1] if asked_for else None
        return output.finish_reason

    def _add(
        self,
        text: str,
        token_ids: list[int],
        logprobs: list[dict[int, Logprob]],
        finish_reason: FinishReason | None,
    ) -> Delta:
        self.finish_reason = finish_reason
        self._texts.append(text)
        self._token_ids += token_ids
        self._logprobs += logprobs
        return Delta(
            index=self.request.child,
            text=text,
            token_ids=token_ids,
            logprobs=None if self.request.params.logprobs is None else logprobs,
            finish_reason=finish_reason,
            stop_reason=self._stop_reason,
            num_cached_tokens=self._num_cached_tokens,
        )

    def _read_prompt_logprobs(self, output: EngineOutput) -> PromptLogprobs | None:
        """Return what a step adds to those of the prompt; nothing predicts its first token."""
        if self.request.params.prompt_logprobs is None:
            return None
        added: list[LogprobRow | None] = [] if self._prompt_logprobs else [None]
        added += [self._row(row) for row in output.prompt_logprobs or ()]
        self._prompt_logprobs += added
        return [*added] or None

    def _row(self, row: TokenLogprobs) -> LogprobRow:
        return LogprobRow(row, self._tokenizer.token_text)


class Answers:
    """The n answers to one prompt.

    Args:
        admission: The prompt and its requests.
        tokenizer: The model's.
        finished_hooks: The plugins' `request_finished`; their errors are logged.
    """

    def __init__(
        self,
        admission: Admission,
        tokenizer: Tokenizer,
        finished_hooks: Sequence[RequestHook] = (),
    ) -> None:
        self.admission = admission
        self._finished_hooks = finished_hooks
        self._answers = {
            request.request_id: Answer(request, tokenizer) for request in admission.requests
        }

    @property
    def is_finished(self) -> bool:
        """Whether every answer is over."""
        return all(answer.finish_reason is not None for answer in self._answers.values())

    @property
    def unfinished_ids(self) -> list[str]:
        """Engine requests that are not over."""
        return [i for i, answer in self._answers.items() if answer.finish_reason is None]

    def take(self, output: EngineOutput) -> tuple[Delta, bool]:
        """Take what a step added; return it, and whether the engine must abort the request.

        Raises:
            RequestError: The engine reports that the request failed.
        """
        answer = self._answers[output.request_id]
        try:
            delta = answer.take(output)
        except QuireError:
            self._run_hooks(answer.request, output)
            raise
        if delta.finish_reason is not None:
            self._run_hooks(answer.request, output)
        return delta, answer.must_abort

    def abort(self) -> list[Delta]:
        """End what is not over; return the last delta of each."""
        return [self._abort(self._answers[request_id]) for request_id in self.unfinished_ids]

    def result(self) -> RequestOutput:
        """Return everything so far."""
        answers = list(self._answers.values())
        first = answers[0]
        prompt, adapter = self.admission.prompt, self.admission.requests[0].adapter
        return RequestOutput(
            request_id=self.admission.request_id,
            prompt=prompt.text,
            prompt_token_ids=list(prompt.token_ids),
            outputs=[answer.completion() for answer in answers],
            finished=self.is_finished,
            prompt_logprobs=first.prompt_logprobs,
            num_cached_tokens=first.num_cached_tokens,
            lora_request=None if adapter is None else _lora_request(adapter),
        )

    def _abort(self, answer: Answer) -> Delta:
        delta = answer.abort()
        last = EngineOutput(
            request_id=answer.request.request_id, token_ids=[], finish_reason="abort"
        )
        self._run_hooks(answer.request, last)
        return delta

    def _run_hooks(self, request: EngineRequest, output: EngineOutput) -> None:
        for source, hook in self._finished_hooks:
            _call_safely(source, hook, request, output)


def _lora_request(adapter: AdapterRef) -> LoRARequest:
    return LoRARequest(adapter.name, lora_path=adapter.path)


def _call_safely(source: Any, hook: Any, request: EngineRequest, output: EngineOutput) -> None:
    try:
        hook(request=request, output=output)
    except Exception:  # a plugin's: the answer is complete, and stays so
        logger.exception("plugin %s failed in request_finished", source)
