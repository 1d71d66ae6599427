"""Every error that quire raises on purpose. Each has a code that stays the same.

* QuireError
  + SettingsError               an option has a value that cannot work
  + PluginError
    - UnknownNameError          nobody registered the name
    - ContestedNameError        two third parties register one name, and it was selected
    - ApiVersionError           a plugin speaks a version of its kind that this quire does not
    - PluginLoadError           what stands behind a name could not be imported or built
    - RefusedError              a named part cannot serve this model or machine
  + CheckpointError
    - CheckpointNotFoundError   no such folder, or nothing under that hub id
    - CheckpointCorruptError    a file is cut short, missing or not what it says it is
    - UnsafeCheckpointError     weights that would run code when loaded
    - UnsupportedModelError     an architecture or a feature of it that nobody serves
  + AdapterError                a LoRA adapter that cannot be used with this model
    - AdapterSourceError        a LoRA source failed, whatever the adapter is
  + CapacityError               the machine is too small for what was asked
  + NativeUnavailableError      compiled CPU kernels cannot be had on this machine
  + EngineDeadError             the engine stopped; nothing can be served any more
  + RequestError                one request is wrong or failed; no other request notices
    - InvalidRequestError       a value of the request is out of range or contradicts another
    - PromptTooLongError        prompt and answer do not fit the model's length
    - GrammarError              a schema, regex or choice that cannot be honoured
    - ChatTemplateError         the conversation cannot be rendered
    - UnknownModelError         the request names a model or adapter that is not served
    - OverloadedError           the queue is full
    - RequestTimeoutError       the request did not finish within its time
    - RequestFailedError        a plugin or the model failed while this request ran
  + PromptsError                some prompts of one call failed; it has the others' outputs
  + CauseError                  a traceback as text: what another error comes from
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from quire.outputs import RequestOutput


class QuireError(Exception):
    """Base of every error below.

    Attributes:
        code: Stable name of the kind of error, for programs.
        output: What was generated for a prompt before it failed, if it ran: set by `LLM` and
            `AsyncEngine.chat`.
    """

    code: ClassVar[str] = "quire_error"
    output: "RequestOutput | None" = None


class SettingsError(QuireError):
    """An option has a value that cannot work."""

    code = "invalid_setting"


class PluginError(QuireError):
    """A plugin is missing, broken or in conflict with another one."""

    code = "plugin_error"


class UnknownNameError(PluginError):
    """Nobody registered the name."""

    code = "unknown_name"


class ContestedNameError(PluginError):
    """Two third parties register one name, and it was selected."""

    code = "contested_name"


class ApiVersionError(PluginError):
    """A plugin speaks a version of its kind's interface that this quire does not."""

    code = "api_version"


class PluginLoadError(PluginError):
    """What stands behind a name could not be imported or built."""

    code = "plugin_load_failed"


class RefusedError(PluginError):
    """A part that was asked for by name cannot serve this model or machine."""

    code = "refused"


class CheckpointError(QuireError):
    """A checkpoint cannot be used."""

    code = "checkpoint_error"


class CheckpointNotFoundError(CheckpointError):
    """No such folder, or nothing under that hub id."""

    code = "checkpoint_not_found"


class CheckpointCorruptError(CheckpointError):
    """A file is cut short, missing, or not what it says it is."""

    code = "checkpoint_corrupt"


class UnsafeCheckpointError(CheckpointError):
    """The weights are in a format that can run code when loaded."""

    code = "checkpoint_unsafe"


class UnsupportedModelError(CheckpointError):
    """An architecture, or a feature of it, that no installed plugin serves."""

    code = "unsupported_model"


class AdapterError(QuireError):
    """A LoRA adapter that cannot be used with this model."""

    code = "adapter_error"


class AdapterSourceError(AdapterError):
    """A LoRA source failed, whatever the adapter is; what it raised is the cause."""

    code = "adapter_source_failed"


class CapacityError(QuireError):
    """The machine is too small for what was asked."""

    code = "out_of_capacity"


class NativeUnavailableError(QuireError):
    """Compiled CPU kernels cannot be had on this machine; the message says why."""

    code = "native_unavailable"


class EngineDeadError(QuireError):
    """The engine stopped; nothing can be served any more."""

    code = "engine_dead"


class RequestError(QuireError):
    """One request is wrong or failed; no other request notices.

    Attributes:
        param: The field of the request that is to blame, as the client wrote it.
    """

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequestError(RequestError):
    """A value of the request is out of range or contradicts another."""


class PromptTooLongError(RequestError):
    """Prompt and answer do not fit the model's length."""

    code = "context_length_exceeded"


class GrammarError(RequestError):
    """A schema, regex or choice that cannot be honoured."""

    code = "invalid_grammar"


class ChatTemplateError(RequestError):
    """The conversation cannot be rendered by the model's chat template."""

    code = "chat_template_failed"


class UnknownModelError(RequestError):
    """The request names a model or an adapter that is not served here."""

    code = "model_not_found"


class OverloadedError(RequestError):
    """The queue is full; try again later."""

    code = "overloaded"


class RequestTimeoutError(RequestError):
    """The request did not finish within its time; whatever it had generated is lost or sent."""

    code = "request_timeout"


class RequestFailedError(RequestError):
    """A plugin or the model failed while this request ran."""

    code = "request_failed"


class PromptsError(QuireError):
    """Some prompts of one call failed; the error of the first of them is its cause.

    Attributes:
        outputs: The output of each prompt, in order; None where it failed.
        errors: Why prompts failed, by their indexes.
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
    """What another error comes from, as the text of a traceback; always a `__cause__`."""

    code = "cause"
