"""Exceptions that quire raises on purpose, each with a stable code.

* QuireError
  + SettingsError               an option has an invalid value
    - UsageError                a command line that cannot be run as it was written
  + PluginError
    - UnknownNameError          no plugin registered the name
    - ContestedNameError        several third-party plugins registered the selected name
    - ApiVersionError           a plugin has an interface version that this quire does not support
    - PluginLoadError           the code of a registered name could not be imported or built
    - RefusedError              a named part does not support this model or machine
  + CheckpointError
    - CheckpointNotFoundError   no such folder, or nothing under that hub id
    - CheckpointCorruptError    a file is truncated, missing or of another format
    - UnsafeCheckpointError     weights that would run code when loaded
    - UnsupportedModelError     an architecture, or a feature of it, that no plugin supports
  + AdapterError                a LoRA adapter that cannot be used with this model
    - AdapterSourceError        a LoRA source failed, independently of the adapter
  + CapacityError               the machine has too little memory for these settings
  + NativeUnavailableError      compiled CPU kernels are not available on this machine
  + CollectiveError             a collective between ranks cannot complete
  + BenchmarkError              a benchmark cannot be measured
  + BatchFileError              a file of requests, or that of their results, cannot be used
  + ToolServerError             a tool server cannot be used
  + EngineDeadError             the engine stopped; no more requests can be served
  + StepFailedError             a step failed in one of several workers
  + RequestError                one request is invalid or failed; others are not affected
    - InvalidRequestError       a value of the request is out of range or contradicts another
      * UnknownFieldError       the request has a field that does not exist
    - PromptTooLongError        prompt and completion exceed the model's maximum length
    - GrammarError              a schema, regex or choice that is not supported
    - ChatTemplateError         the conversation cannot be rendered
    - UnknownModelError         the request names a model or adapter that is not served
    - OverloadedError           the queue is full
    - RequestTimeoutError       the request did not finish within its time limit
    - RequestFailedError        a plugin or the model failed while this request ran
    - ReplicaDeadError          the replica that ran the request died; others are served
  + PromptsError                some prompts of one call failed; it has the others' outputs
  + CauseError                  the cause of another error: a traceback as text
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from quire.messages import ErrorReport
    from quire.outputs import RequestOutput


class QuireError(Exception):
    """Base of every error below.

    Attributes:
        code: Stable name of the kind of error, for programs.
        output: Output of a prompt up to its failure, if it ran; set by `LLM` and
            `AsyncEngine.chat`.
    """

    code: ClassVar[str] = "quire_error"
    output: "RequestOutput | None" = None


class SettingsError(QuireError):
    """An option has an invalid value."""

    code = "invalid_setting"


class UsageError(SettingsError):
    """A command line that cannot be run as it was written.

    Attributes:
        hint: What to do about it, in one line.
    """

    code = "wrong_usage"

    def __init__(self, message: str, *, hint: str = "see `quire --help`") -> None:
        super().__init__(message)
        self.hint = hint


class PluginError(QuireError):
    """A plugin is missing, broken or in conflict with another one."""

    code = "plugin_error"


class UnknownNameError(PluginError):
    """No plugin registered the name."""

    code = "unknown_name"


class ContestedNameError(PluginError):
    """Several third-party plugins registered the selected name."""

    code = "contested_name"


class ApiVersionError(PluginError):
    """A plugin has a version of its kind's interface that this quire does not support."""

    code = "api_version"


class PluginLoadError(PluginError):
    """The code of a registered name could not be imported or built."""

    code = "plugin_load_failed"


class RefusedError(PluginError):
    """A part that the user named does not support this model or machine."""

    code = "refused"


class CheckpointError(QuireError):
    """A checkpoint cannot be used."""

    code = "checkpoint_error"


class CheckpointNotFoundError(CheckpointError):
    """No such folder, or nothing under that hub id."""

    code = "checkpoint_not_found"


class CheckpointCorruptError(CheckpointError):
    """A file is truncated, missing, or of another format than its name says."""

    code = "checkpoint_corrupt"


class UnsafeCheckpointError(CheckpointError):
    """The weights are in a format that can run code when loaded."""

    code = "checkpoint_unsafe"


class UnsupportedModelError(CheckpointError):
    """An architecture, or a feature of it, that no installed plugin supports."""

    code = "unsupported_model"


class AdapterError(QuireError):
    """A LoRA adapter that cannot be used with this model."""

    code = "adapter_error"


class AdapterSourceError(AdapterError):
    """A LoRA source failed, independently of the adapter; its own exception is the cause."""

    code = "adapter_source_failed"


class CapacityError(QuireError):
    """The machine has too little memory for these settings."""

    code = "out_of_capacity"


class NativeUnavailableError(QuireError):
    """Compiled CPU kernels are not available on this machine; the message says why."""

    code = "native_unavailable"


class CollectiveError(QuireError):
    """A collective between the ranks of a group cannot complete.

    Attributes:
        ranks: Ranks that are behind or called another collective; empty if they are unknown.
        count: Number of the collective, counted from 1 since the group was made or reset.
    """

    code = "collective_failed"

    def __init__(self, message: str, *, ranks: Sequence[int] = (), count: int = 0) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.count = count


class BenchmarkError(QuireError):
    """A benchmark cannot be measured; the message says why."""

    code = "benchmark_failed"


class BatchFileError(QuireError):
    """A file of requests, or the file of their results, cannot be used as it is."""

    code = "batch_file_refused"


class ToolServerError(QuireError):
    """A tool server is not connected, or does not do what the protocol says."""

    code = "tool_server_error"


class EngineDeadError(QuireError):
    """The engine stopped; no more requests can be served.

    Lines of the message after the first are stacks of processes.
    """

    code = "engine_dead"

    @property
    def headline(self) -> str:
        """The message without the stacks."""
        return str(self).partition("\n")[0]


class StepFailedError(QuireError):
    """A step failed in one of several workers, which must all compute the same.

    Nothing of the step was tried again. Its changes are in the worker's tables, its tokens do not
    count as computed, and no token was sampled for a request that failed.

    Attributes:
        report: Error that a client may read, with its cause; None: it is this error.
        slots: Errors of the slots that are known to have failed; empty if only the whole batch is.
        plan_id: Id of the step plan, once the engine knows of the failure.
    """

    code = "step_failed"

    def __init__(
        self,
        message: str,
        *,
        report: "ErrorReport | None" = None,
        slots: "Mapping[int, ErrorReport] | None" = None,
        plan_id: int = 0,
    ) -> None:
        super().__init__(message)
        self.report = report
        self.slots = dict(slots or {})
        self.plan_id = plan_id


class RequestError(QuireError):
    """One request is invalid or failed; other requests are not affected.

    Attributes:
        param: Name of the request field at fault, as the client wrote it.
    """

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequestError(RequestError):
    """A value of the request is out of range or contradicts another."""


class UnknownFieldError(InvalidRequestError):
    """The request has a field that does not exist; `param` is its path."""

    code = "unknown_parameter"


class PromptTooLongError(RequestError):
    """Prompt and completion exceed the model's maximum length."""

    code = "context_length_exceeded"


class GrammarError(RequestError):
    """A schema, regex or choice that is not supported."""

    code = "invalid_grammar"


class ChatTemplateError(RequestError):
    """The conversation cannot be rendered by the model's chat template."""

    code = "chat_template_failed"


class UnknownModelError(RequestError):
    """The request names a model or an adapter that is not served here."""

    code = "model_not_found"


class OverloadedError(RequestError):
    """The queue is full; try again later.

    Attributes:
        retry_after_s: Seconds after which it makes sense; 0: unknown.
    """

    code = "overloaded"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: float = 0.0
    ) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class RequestTimeoutError(RequestError):
    """The request did not finish within its time limit; no more output follows."""

    code = "request_timeout"


class RequestFailedError(RequestError):
    """A plugin or the model failed while this request ran."""

    code = "request_failed"


class ReplicaDeadError(RequestError):
    """The replica that ran the request died; the other replicas serve, and it is restarted."""

    code = "replica_dead"


class PromptsError(QuireError):
    """Some prompts of one call failed; the error of the first of them is its cause.

    Attributes:
        outputs: Output of each prompt, in order; None where it failed.
        errors: Errors of the failed prompts, by prompt index.
    """

    code = "prompts_failed"

    def __init__(
        self,
        message: str,
        *,
        outputs: Sequence["RequestOutput | None"] = (),
        errors: Mapping[int, QuireError] | None = None,
    ) -> None:
        super().__init__(message)
        self.outputs = list(outputs)
        self.errors = dict(errors or {})


class CauseError(QuireError):
    """Cause of another error, as the text of a traceback; always a `__cause__`."""

    code = "cause"
