"""Linear layers keep their weights as the checkpoint says, else as the user says, else exactly.

What costs accuracy is chosen by nobody but the user.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from quire.compose.choosing import ASKED_FOR, AUTO, NONE, check_present
from quire.compose.composition import Choice, Rejection
from quire.errors import RefusedError, UnknownNameError
from quire.interfaces.model import ModelDescription
from quire.interfaces.quantization import Quantization, QuantizationCapabilities
from quire.plugins.discovery import locate
from quire.plugins.loading import Registries
from quire.plugins.registry import Entry, Registry, check_api

ROLE = "quantization"
NOBODY = "none of the installed ones"
WIDEST = "float32"  # has all numbers of the other types


@dataclass(frozen=True, slots=True)
class QuantizationQuery:
    """What a method is to serve.

    Attributes:
        device: "cpu" or "cuda".
        dtype: In what layers compute.
        kernels: What layers run.
        kernels_why: Why so.
        checkpoint_dtype: Of the weights as they lie in the checkpoint.
    """

    device: str
    dtype: str
    kernels: str
    kernels_why: str
    checkpoint_dtype: str

    def refusal(self, capabilities: QuantizationCapabilities) -> str | None:
        """Return why a method cannot serve, or None if it can."""
        if self.device not in capabilities.devices:
            return f"device {self.device} is not among {_listed(capabilities.devices)}"
        if self.dtype not in capabilities.dtypes:
            return (
                f"compute type {self.dtype} is not among {_listed(capabilities.dtypes)}; set "
                f"--dtype {min(capabilities.dtypes)}"
            )
        if capabilities.kernels is not None and self.kernels not in capabilities.kernels:
            is_named = self.kernels_why == ASKED_FOR
            why = f"--kernels {self.kernels}" if is_named else self.kernels_why
            return f"it needs {_listed(capabilities.kernels)} kernels: {why}"
        return None

    def refusal_of_ordinary(self, capabilities: QuantizationCapabilities) -> str | None:
        """Return the same for a checkpoint that names no method."""
        if not capabilities.from_plain_checkpoint:
            return "it needs a checkpoint that was quantized for it"
        return self.refusal(capabilities)

    def refusal_of_prepared(self, capabilities: QuantizationCapabilities) -> str | None:
        """Return the same for a checkpoint that names the method."""
        if not capabilities.reads_prepared:
            return "it takes ordinary checkpoints only, and reads none that is quantized already"
        return self.refusal(capabilities)


def choose_quantization(
    registries: Registries, wanted: str, description: ModelDescription, query: QuantizationQuery
) -> tuple[Choice | None, str]:
    """Choose how linear layers keep their weights.

    Args:
        registries: Where the methods are found.
        wanted: A name, "auto" or "none".
        description: Names the checkpoint's own method, if it has one.
        query: What the method is to serve.

    Returns:
        Who does it, or None if weights are kept in the compute type; and what is kept and why, for
        people.

    Raises:
        PluginError: The method does not exist or cannot serve; or another one was asked for than
            the checkpoint's own.
    """
    registry = registries.quantizations
    choice, why = None, ASKED_FOR
    if description.quantization is not None:
        choice = _own(registry, description.quantization, wanted, query)
    elif wanted == AUTO:
        choice, why = _exact(registry, query)
    elif wanted != NONE:
        entry = _able(registry, wanted, query)
        rejected = tuple(Rejection(name, "not asked for") for name in registry if name != wanted)
        choice = Choice(ROLE, entry, ASKED_FOR, rejected)
    return choice, _told(choice, why, query)


def without_kernels(
    choice: Choice | None, query: QuantizationQuery, reason: str
) -> tuple[Choice | None, str]:
    """Return what a method comes to whose kernels turned out not to be there.

    Its numbers are then kept in the compute type. Where those are the checkpoint's own, nothing of
    the method is left.

    Returns:
        As `choose_quantization` does.
    """
    if choice is None:
        return None, _told(None, reason, query)
    first_line = reason.partition("\n")[0]
    why = f"{choice.name} has no kernels: {first_line}"
    if query.checkpoint_dtype in choice.entry.capabilities.lossless_for:
        return None, _told(None, why, query)
    kept = replace(choice, why=f"{choice.why}; its numbers are kept in {query.dtype}, for {why}")
    return kept, _told(kept, why, query)


def _told(choice: Choice | None, why: str, query: QuantizationQuery) -> str:
    return f"{query.dtype} ({why})" if choice is None else f"{choice.name} ({choice.why})"


def _own(
    registry: Registry[type[Quantization]], own: str, wanted: str, query: QuantizationQuery
) -> Choice:
    """Take the checkpoint's method: its files hold weights that no other can read."""
    try:
        entry = registry.entry(own)
    except UnknownNameError as error:
        readers = [e.name for e in registry.offers() if e.capabilities.reads_prepared]
        raise UnknownNameError(
            f"the weights of this checkpoint are quantized by {own!r}, and no installed plugin "
            f"offers that quantization method; quantized checkpoints are read by: "
            f"{', '.join(dict.fromkeys(readers)) or NOBODY}. Take the model's ordinary checkpoint"
        ) from error
    check_api(entry)
    if wanted not in (AUTO, own):
        raise RefusedError(
            f"--quantization {wanted}: the weights of this checkpoint are quantized by {own!r}, "
            f"and only that can read them; take --quantization {AUTO}"
        )
    reason = query.refusal_of_prepared(entry.capabilities)
    if reason is not None:
        raise RefusedError(
            f"the weights of this checkpoint are quantized by {own!r}, and quantization method "
            f"{own!r} of {entry.source} cannot serve here: {reason}"
        )
    return Choice(ROLE, entry, "the checkpoint's own")


def _able(registry: Registry[type[Quantization]], wanted: str, query: QuantizationQuery) -> Entry:
    """Return the method that the user named.

    Raises:
        PluginError: It does not exist, or cannot serve.
    """
    entry = registry.entry(wanted)
    check_api(entry)
    check_present(entry)
    reason = query.refusal_of_ordinary(entry.capabilities)
    if reason is None:
        return entry
    able = [offer.name for offer in registry.offers() if _unavailable_reason(offer, query) is None]
    raise RefusedError(
        f"--quantization {wanted}: this method of {entry.source} cannot serve here: {reason}; "
        f"can: {', '.join(dict.fromkeys(able)) or NOBODY}"
    )


def _exact(
    registry: Registry[type[Quantization]], query: QuantizationQuery
) -> tuple[Choice | None, str]:
    """Choose among those that keep the checkpoint's numbers as they are."""
    able: list[Entry] = []
    rejected: list[Rejection] = []
    for name in registry:
        entry = registry.uncontested(name)
        reason = (
            "several plugins offer it" if entry is None else _exact_unavailable_reason(entry, query)
        )
        if entry is None or reason is not None:
            rejected.append(Rejection(name, str(reason)))
        else:
            able.append(entry)
    if not able and query.checkpoint_dtype == query.dtype:
        return None, "auto: the checkpoint's own type"
    if not able:
        return None, f"auto: {_nobody(query, rejected)}"
    best = max(able, key=lambda entry: entry.capabilities.priority)
    rejected += (
        Rejection(entry.name, f"it can; {best.name} was preferred")
        for entry in able
        if entry is not best
    )
    why = f"auto: it keeps {query.checkpoint_dtype} weights as they are"
    return Choice(ROLE, best, why, tuple(rejected)), why


def _exact_unavailable_reason(entry: Entry, query: QuantizationQuery) -> str | None:
    capabilities: QuantizationCapabilities = entry.capabilities
    if query.checkpoint_dtype not in capabilities.lossless_for:
        return _rounds(query)
    return _unavailable_reason(entry, query)


def _rounds(query: QuantizationQuery) -> str:
    return f"it does not keep {query.checkpoint_dtype} weights as they are"


def _unavailable_reason(entry: Entry, query: QuantizationQuery) -> str | None:
    if entry.api not in entry.kind.apis:
        return f"it speaks version {entry.api} of the interface"
    if locate(entry.reference) is None:
        return f"there is no module for {entry.reference!r}"
    return query.refusal_of_ordinary(entry.capabilities)


def _nobody(query: QuantizationQuery, rejected: Iterable[Rejection]) -> str:
    """Say what the compute type does to the weights, and why no method keeps them instead.

    Those that never keep them exactly are not worth a word.
    """
    what = "holds" if query.dtype == WIDEST else "rounds"
    reasons = [f"{r.name}: {r.reason}" for r in rejected if r.reason != _rounds(query)]
    return "; ".join((f"{query.dtype} {what} all {query.checkpoint_dtype} numbers", *reasons))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
