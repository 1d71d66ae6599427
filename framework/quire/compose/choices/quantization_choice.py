"""Selection of the quantization method: the user's, else one that loses nothing.

A method that reduces accuracy is used only if the user names it. A quantized checkpoint has a
method of its own that reads its weights. They are stored by a method that keeps their codes, or, if
none can be used, as ordinary weights.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from quire.compose.choices.choosing import (
    ASKED_FOR,
    AUTO,
    NONE,
    all_others,
    check_present,
    find_offer,
)
from quire.compose.choices.probes import cause_of
from quire.compose.composition import Choice, Decision, Rejection, hidden_dtype
from quire.errors import RefusedError, UnknownNameError
from quire.interfaces.model import ModelDescription
from quire.interfaces.quantization import Quantization, QuantizationCapabilities
from quire.plugins.loading import Registries
from quire.plugins.registry import Entry, Registry, check_api

ROLE = "quantization"
NONE_INSTALLED = "none of the installed ones"
WIDEST = "float32"  # represents all values of the other dtypes
USUAL_DTYPE = "bfloat16"  # of models whose config names none
PREPARED_ROLE = "checkpoint's quantization"


@dataclass(frozen=True, slots=True)
class QuantizationQuery:
    """Requirements on a quantization method.

    Attributes:
        device: "cpu" or "cuda".
        dtype: Compute dtype.
        kernels: Kernels of layers.
        checkpoint_dtype: Dtype of the weights in the checkpoint.
        unavailable: Reasons why methods cannot run on this machine, by their probes.
    """

    device: str
    dtype: str
    kernels: Decision[str]
    checkpoint_dtype: str
    unavailable: Mapping[str, str] = field(default_factory=dict)

    @property
    def hidden_dtype(self) -> str:
        """The dtype of hidden states."""
        return hidden_dtype(self.dtype, self.kernels.value)

    @property
    def weight_dtype(self) -> str:
        """The dtype whose values a lossless method keeps.

        It is the checkpoint's, unless products take inputs of a dtype of their own.
        """
        return self.checkpoint_dtype if self.dtype == self.hidden_dtype else self.dtype

    def refusal(self, capabilities: QuantizationCapabilities) -> str | None:
        """Return why a method cannot be used, or None if it can."""
        if self.device not in capabilities.devices:
            return f"device {self.device} is not among {_listed(capabilities.devices)}"
        if self.hidden_dtype not in capabilities.dtypes:
            return (
                f"compute dtype {self.hidden_dtype} is not among {_listed(capabilities.dtypes)}; "
                f"set --dtype {min(capabilities.dtypes)}"
            )
        kernels = self.kernels
        if capabilities.kernels is not None and kernels.value not in capabilities.kernels:
            is_named = kernels.reason == ASKED_FOR
            reason = f"--kernels {kernels.value}" if is_named else kernels.reason
            return f"it needs {_listed(capabilities.kernels)} kernels: {reason}"
        return None if capabilities.probe is None else self.unavailable.get(capabilities.probe)

    def refusal_of_ordinary(self, capabilities: QuantizationCapabilities) -> str | None:
        """Return the same for a checkpoint that names no method."""
        if not capabilities.from_plain_checkpoint:
            return "it needs a checkpoint that was quantized for it"
        return self.refusal(capabilities)

    def refusal_of_lossless(self, capabilities: QuantizationCapabilities) -> str | None:
        """Return the same for a method that the user has not named."""
        if self.weight_dtype not in capabilities.lossless_for:
            return self.lossy_reason
        if self.dtype not in {self.hidden_dtype, *capabilities.product_dtypes}:
            return f"it does not multiply in {self.dtype}"
        return self.refusal_of_ordinary(capabilities)

    @property
    def lossy_reason(self) -> str:
        """The reason against a method that is not lossless."""
        return f"it is not lossless for {self.weight_dtype} weights"

    def refusal_of_prepared(self, capabilities: QuantizationCapabilities) -> str | None:
        """Return the same for a checkpoint that names the method."""
        if not capabilities.reads_prepared:
            return "it supports only unquantized checkpoints, and this one is already quantized"
        return self.refusal(capabilities)


def choose_quantization(
    registries: Registries, wanted: str, description: ModelDescription, query: QuantizationQuery
) -> Decision[Choice | None]:
    """Choose the quantization method of linear layers; None: weights in the compute dtype.

    Args:
        registries: Registries of the installed plugins.
        wanted: Name of a method, "auto" or "none".
        description: Description of the model, with the checkpoint's own method if it has one.
        query: Requirements on the method.

    Raises:
        PluginError: The method does not exist or cannot be used; or the user wants to quantize
            quantized weights once more.
    """
    registry = registries.quantizations
    own = description.quantization
    if own is not None:
        return _for_prepared(registry, own, wanted, query)
    if wanted == AUTO:
        return _lossless_method(registry, query)
    if wanted == NONE:
        return Decision(None, ASKED_FOR, all_others(registry, wanted))
    entry = _named_method(registry, wanted, query)
    return _decision(Choice(ROLE, entry, ASKED_FOR, all_others(registry, wanted)))


def choose_prepared(
    registries: Registries, description: ModelDescription, query: QuantizationQuery
) -> Choice | None:
    """Return the method that reads the weights of a quantized checkpoint; None: it is not.

    Raises:
        PluginError: No plugin offers the method, or it cannot be used here.
    """
    own, registry = description.quantization, registries.quantizations
    if own is None:
        return None
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
    reason = query.refusal_of_prepared(entry.capabilities)
    if reason is not None:
        raise RefusedError(
            f"the weights of this checkpoint are quantized by {own!r}, and quantization method "
            f"{own!r} of {entry.source} cannot be used here: {reason}"
        )
    return Choice(PREPARED_ROLE, entry, "named by the checkpoint")


def with_dtype_of_prepared(description: ModelDescription) -> ModelDescription:
    """Return the description of a quantized checkpoint with the dtype that its weights had."""
    if description.quantization is None:
        return description
    config = description.config
    dtype = config.get("dtype") or config.get("torch_dtype") or USUAL_DTYPE
    return replace(description, checkpoint_dtype=str(dtype))


def _decision(choice: Choice) -> Decision[Choice | None]:
    return Decision(choice, choice.reason, choice.rejected)


def _for_prepared(
    registry: Registry[type[Quantization]], own: str, wanted: str, query: QuantizationQuery
) -> Decision[Choice | None]:
    """Choose how the weights of a quantized checkpoint are stored.

    Raises:
        RefusedError: The user wants them to be quantized once more.
    """
    if wanted == NONE:
        return Decision(None, f"{ASKED_FOR}; {own} is dequantized", all_others(registry, wanted))
    if wanted in (AUTO, own):
        return _keeping_method(registry, own, query)
    entry = registry.entry(wanted)
    keeps_codes = entry.capabilities.stores_quantized
    if not keeps_codes and not entry.capabilities.from_plain_checkpoint:
        raise RefusedError(
            f"--quantization {wanted}: it reads checkpoints that are quantized by {wanted!r}, and "
            f"this one says that it is quantized by {own!r}; use --quantization {AUTO}, or correct "
            "its quant_method"
        )
    if not keeps_codes and not registry.entry(own).capabilities.may_be_requantized:
        raise RefusedError(
            f"--quantization {wanted}: the weights of this checkpoint are quantized by {own!r}, "
            f"and would be rounded twice; use --quantization {AUTO}, or an unquantized checkpoint"
        )
    entry = _named_method(registry, wanted, query, keeps_codes=keeps_codes)
    return _decision(Choice(ROLE, entry, ASKED_FOR, all_others(registry, wanted)))


def _keeping_method(
    registry: Registry[type[Quantization]], own: str, query: QuantizationQuery
) -> Decision[Choice | None]:
    """Choose a method that keeps the codes of a checkpoint, its own before others."""
    able: list[Entry] = []
    rejected: list[Rejection] = []
    for name in registry:
        entry, reason = find_offer(registry, name)
        if not entry.capabilities.stores_quantized:
            continue
        reason = reason or query.refusal(entry.capabilities)
        if reason is None:
            able.append(entry)
        else:
            rejected.append(Rejection(name, cause_of(reason)))
    if able:
        best = max(able, key=lambda entry: (entry.name == own, entry.capabilities.priority))
        return _decision(Choice(ROLE, best, f"the checkpoint's own: {own}", tuple(rejected)))
    reasons = "; ".join((f"{own} is dequantized", *(f"{r.name}: {r.reason}" for r in rejected)))
    ordinary = _lossless_method(registry, replace(query, checkpoint_dtype=WIDEST))
    if ordinary.value is None:
        return Decision(None, f"{AUTO}: {reasons}", tuple(rejected))
    return _decision(replace(ordinary.value, reason=f"{AUTO}: {reasons}"))


def _named_method(
    registry: Registry[type[Quantization]],
    wanted: str,
    query: QuantizationQuery,
    *,
    keeps_codes: bool = False,
) -> Entry:
    """Return the method that the user named: to quantize weights, or to keep quantized ones.

    Raises:
        PluginError: It does not exist, or cannot be used.
    """
    entry = registry.entry(wanted)
    check_api(entry)
    check_present(entry)
    refusal = query.refusal if keeps_codes else query.refusal_of_ordinary
    reason = refusal(entry.capabilities)
    if reason is None:
        return entry
    offers = (find_offer(registry, name) for name in registry)
    able = [
        other.name
        for other, problem in offers
        if problem is None and refusal(other.capabilities) is None
    ]
    raise RefusedError(
        f"--quantization {wanted}: this method of {entry.source} cannot be used here: {reason}; "
        f"methods that can: {', '.join(able) or NONE_INSTALLED}"
    )


def _lossless_method(
    registry: Registry[type[Quantization]], query: QuantizationQuery
) -> Decision[Choice | None]:
    """Choose among the methods that are lossless for the checkpoint's dtype."""
    able: list[Entry] = []
    rejected: list[Rejection] = []
    for name in registry:
        entry, reason = find_offer(registry, name)
        reason = reason or query.refusal_of_lossless(entry.capabilities)
        if reason is None:
            able.append(entry)
        else:
            rejected.append(Rejection(name, cause_of(reason)))
    if not able and query.checkpoint_dtype == query.hidden_dtype:
        return Decision(None, "auto: the checkpoint's own dtype", tuple(rejected))
    if not able:
        return Decision(None, f"auto: {_why_no_method(query, rejected)}", tuple(rejected))
    best = max(able, key=lambda entry: entry.capabilities.priority)
    rejected += (
        Rejection(entry.name, f"supported, but {best.name} has priority")
        for entry in able
        if entry is not best
    )
    reason = f"auto: it is lossless for {query.weight_dtype} weights"
    return _decision(Choice(ROLE, best, reason, tuple(rejected)))


def _why_no_method(query: QuantizationQuery, rejected: Iterable[Rejection]) -> str:
    """Describe the effect of the compute dtype on the weights, and why no method was chosen.

    Methods that are not lossless are left out.
    """
    what = "represents" if query.hidden_dtype == WIDEST else "rounds"
    reasons = [f"{r.name}: {r.reason}" for r in rejected if r.reason != query.lossy_reason]
    effect = f"{query.hidden_dtype} {what} all {query.checkpoint_dtype} values"
    return "; ".join((effect, *reasons))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
