"""Selection of the quantization method: the checkpoint's, else the user's, else a lossless one.

A method that reduces accuracy is used only if the user or the checkpoint names it.
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
NONE_INSTALLED = "none of the installed ones"
WIDEST = "float32"  # represents all values of the other dtypes


@dataclass(frozen=True, slots=True)
class QuantizationQuery:
    """Requirements on a quantization method.

    Attributes:
        device: "cpu" or "cuda".
        dtype: Compute dtype of layers.
        kernels: Kernels of layers.
        kernels_why: Reason for these kernels.
        checkpoint_dtype: Dtype of the weights in the checkpoint.
    """

    device: str
    dtype: str
    kernels: str
    kernels_why: str
    checkpoint_dtype: str

    def refusal(self, capabilities: QuantizationCapabilities) -> str | None:
        """Return why a method cannot be used, or None if it can."""
        if self.device not in capabilities.devices:
            return f"device {self.device} is not among {_listed(capabilities.devices)}"
        if self.dtype not in capabilities.dtypes:
            return (
                f"compute dtype {self.dtype} is not among {_listed(capabilities.dtypes)}; set "
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
            return "it supports only unquantized checkpoints, and this one is already quantized"
        return self.refusal(capabilities)


def choose_quantization(
    registries: Registries, wanted: str, description: ModelDescription, query: QuantizationQuery
) -> tuple[Choice | None, str]:
    """Choose the quantization method of linear layers.

    Args:
        registries: Registries of the installed plugins.
        wanted: Name of a method, "auto" or "none".
        description: Description of the model, with the checkpoint's own method if it has one.
        query: Requirements on the method.

    Returns:
        The method, or None if weights are kept in the compute dtype; and a description of it with
        the reason, for people.

    Raises:
        PluginError: The method does not exist or cannot be used; or the user asked for another one
            than the checkpoint's own.
    """
    registry = registries.quantizations
    choice, why = None, ASKED_FOR
    if description.quantization is not None:
        choice = _checkpoint_method(registry, description.quantization, wanted, query)
    elif wanted == AUTO:
        choice, why = _lossless_method(registry, query)
    elif wanted != NONE:
        entry = _named_method(registry, wanted, query)
        rejected = tuple(Rejection(name, "not asked for") for name in registry if name != wanted)
        choice = Choice(ROLE, entry, ASKED_FOR, rejected)
    return choice, _summary(choice, why, query)


def without_kernels(
    choice: Choice | None, query: QuantizationQuery, reason: str
) -> tuple[Choice | None, str]:
    """Return the choice after the kernels of the method failed to load.

    The weights are then dequantized to the compute dtype. If the method is lossless for the
    checkpoint's dtype, that is the same as no method.

    Returns:
        The same as `choose_quantization`.
    """
    if choice is None:
        return None, _summary(None, reason, query)
    first_line = reason.partition("\n")[0]
    why = f"{choice.name} has no kernels: {first_line}"
    if query.checkpoint_dtype in choice.entry.capabilities.lossless_for:
        return None, _summary(None, why, query)
    kept = replace(choice, why=f"{choice.why}; dequantized to {query.dtype}, because {why}")
    return kept, _summary(kept, why, query)


def _summary(choice: Choice | None, why: str, query: QuantizationQuery) -> str:
    return f"{query.dtype} ({why})" if choice is None else f"{choice.name} ({choice.why})"


def _checkpoint_method(
    registry: Registry[type[Quantization]], own: str, wanted: str, query: QuantizationQuery
) -> Choice:
    """Choose the checkpoint's method, because no other can read its weights."""
    try:
        entry = registry.entry(own)
    except UnknownNameError as error:
        readers = [e.name for e in registry.offers() if e.capabilities.reads_prepared]
        raise UnknownNameError(
            f"the weights of this checkpoint are quantized by {own!r}, and no installed plugin "
            f"offers that quantization method; methods that read quantized checkpoints: "
            f"{', '.join(dict.fromkeys(readers)) or NONE_INSTALLED}. Use an unquantized checkpoint"
        ) from error
    check_api(entry)
    if wanted not in (AUTO, own):
        raise RefusedError(
            f"--quantization {wanted}: the weights of this checkpoint are quantized by {own!r}, "
            f"and only that method can read them; use --quantization {AUTO}"
        )
    reason = query.refusal_of_prepared(entry.capabilities)
    if reason is not None:
        raise RefusedError(
            f"the weights of this checkpoint are quantized by {own!r}, and quantization method "
            f"{own!r} of {entry.source} cannot be used here: {reason}"
        )
    return Choice(ROLE, entry, "the checkpoint's own")


def _named_method(
    registry: Registry[type[Quantization]], wanted: str, query: QuantizationQuery
) -> Entry:
    """Return the method that the user named.

    Raises:
        PluginError: It does not exist, or cannot be used.
    """
    entry = registry.entry(wanted)
    check_api(entry)
    check_present(entry)
    reason = query.refusal_of_ordinary(entry.capabilities)
    if reason is None:
        return entry
    able = [offer.name for offer in registry.offers() if _unavailable_reason(offer, query) is None]
    raise RefusedError(
        f"--quantization {wanted}: this method of {entry.source} cannot be used here: {reason}; "
        f"methods that can: {', '.join(dict.fromkeys(able)) or NONE_INSTALLED}"
    )


def _lossless_method(
    registry: Registry[type[Quantization]], query: QuantizationQuery
) -> tuple[Choice | None, str]:
    """Choose among the methods that are lossless for the checkpoint's dtype."""
    able: list[Entry] = []
    rejected: list[Rejection] = []
    for name in registry:
        entry = registry.uncontested(name)
        reason = (
            "several plugins offer it"
            if entry is None
            else _lossless_unavailable_reason(entry, query)
        )
        if entry is None or reason is not None:
            rejected.append(Rejection(name, str(reason)))
        else:
            able.append(entry)
    if not able and query.checkpoint_dtype == query.dtype:
        return None, "auto: the checkpoint's own dtype"
    if not able:
        return None, f"auto: {_why_no_method(query, rejected)}"
    best = max(able, key=lambda entry: entry.capabilities.priority)
    rejected += (
        Rejection(entry.name, f"supported, but {best.name} has priority")
        for entry in able
        if entry is not best
    )
    why = f"auto: it is lossless for {query.checkpoint_dtype} weights"
    return Choice(ROLE, best, why, tuple(rejected)), why


def _lossless_unavailable_reason(entry: Entry, query: QuantizationQuery) -> str | None:
    capabilities: QuantizationCapabilities = entry.capabilities
    if query.checkpoint_dtype not in capabilities.lossless_for:
        return _lossy_reason(query)
    return _unavailable_reason(entry, query)


def _lossy_reason(query: QuantizationQuery) -> str:
    return f"it is not lossless for {query.checkpoint_dtype} weights"


def _unavailable_reason(entry: Entry, query: QuantizationQuery) -> str | None:
    if entry.api not in entry.kind.apis:
        return f"interface version {entry.api} is not supported"
    if locate(entry.reference) is None:
        return f"there is no module for {entry.reference!r}"
    return query.refusal_of_ordinary(entry.capabilities)


def _why_no_method(query: QuantizationQuery, rejected: Iterable[Rejection]) -> str:
    """Describe the effect of the compute dtype on the weights, and why no method was chosen.

    Methods that are not lossless are left out.
    """
    what = "represents" if query.dtype == WIDEST else "rounds"
    reasons = [f"{r.name}: {r.reason}" for r in rejected if r.reason != _lossy_reason(query)]
    return "; ".join((f"{query.dtype} {what} all {query.checkpoint_dtype} values", *reasons))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
