"""Names of logits processors in requests: which may be named, and why others may not."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from quire.errors import InvalidRequestError
from quire.interfaces.field_types import shown
from quire.interfaces.sampling import SamplerCapabilities
from quire.sampling_params import SamplingParams

PARAM = "logits_processors"


class LogitsProcessorNames:
    """The steps of an engine by name: those that requests name, and those that always run.

    Args:
        in_use: Sampler steps of the engine with their capabilities.
        offered: Logits processors of installed plugins that are not in use -> how to use one.

    Attributes:
        opt_in: Names that a request may have in `logits_processors`.
    """

    def __init__(
        self,
        in_use: Mapping[str, SamplerCapabilities] = MappingProxyType({}),
        offered: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._in_use = in_use
        self._offered = offered
        self.opt_in = tuple(name for name, step in in_use.items() if step.is_opt_in)
        self._readers = {
            field.name: [name for name, step in in_use.items() if _reads(step, field.name)]
            for name in self.opt_in
            for field in in_use[name].fields
        }

    def check(self, params: SamplingParams) -> None:
        """Check the names of a request, and that it names the steps whose fields it sets.

        Raises:
            InvalidRequestError: A name is not one of `opt_in`, or no step reads a field.
        """
        for name in params.logits_processors:
            if name not in self.opt_in:
                raise InvalidRequestError(self._refusal(name), param=PARAM)
        idle = set(self.opt_in) - set(params.logits_processors)
        for field in params.extra_args:
            readers = self._readers.get(field, ())
            if readers and idle.issuperset(readers):
                raise InvalidRequestError(
                    f"{field} is read by the logits processor {readers[0]!r}, which runs only for "
                    f"requests that name it; send {PARAM}: [{readers[0]!r}], or leave {field} out",
                    param=field,
                )

    def _refusal(self, name: str) -> str:
        """Return why a name cannot be in a request, and the way out."""
        if name in self._in_use:
            fields = ", ".join(field.name for field in self._in_use[name].fields)
            return (
                f"{name!r} needs no name in {PARAM}: it runs for every request whose fields ask "
                f"for it ({fields or 'it has none'}); leave the name out"
            )
        if name in self._offered:
            return f"the logits processor {name!r} is not in use; {self._offered[name]}"
        near = get_close_matches(name, (*self.opt_in, *self._offered), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        if not near and (":" in name or "." in name):
            hint = (
                "; it takes names that plugins register, and no code of a client: a plugin's step "
                "that declares is_opt_in has such a name"
            )
        listed = ", ".join(self.opt_in) or "none"
        return f"there is no logits processor {shown(name)}{hint} (requests can name: {listed})"


def _reads(step: SamplerCapabilities, name: str) -> bool:
    return any(field.name == name for field in step.fields)
