"""Selection of the quantization method: the checkpoint's, else the user's, else a lossless one.

A method that reduces accuracy is used only if the user or the checkpoint names it. Formats that the
loader dequantizes need no method.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quire.compose.choices.choosing import (
    ASKED_FOR,
    AUTO,
    NONE,
    all_others,
    check_present,
    find_offer,
)
from quire.compose.choices.probes import cause_of
from quire.compose.composition import Choice, Decision, Rejection
from quire.errors import RefusedError, UnknownNameError
from quire.interfaces.model import ModelDescription
from quire.interfaces.quantization import Quantization, QuantizationCapabilities
from quire.plugins.loading import Registries
from quire.plugins.registry import Entry, Registry, check_api

ROLE = "quantization"
NONE_INSTALLED = "none of the installed ones"
WIDEST = "float32"  # represents all values of the other dtypes
DEQUANTIZED = ("fp8", "mxfp4")  # by the loader, where no plugin offers a method of the name


@dataclass(frozen=True, slots=True)
class QuantizationQuery:
    """Requirements on a quantization method.

    Attributes:
        device: "cpu" or "cuda".
        dtype: Compute dtype of layers.
        kernels: Kernels of layers.
        checkpoint_dtype: Dtype of the weights in the checkpoint.
        unavailable: Reasons why methods cannot run on this machine, by their probes.
    """

    device: str
    dtype: str
    kernels: Decision[str]
    checkpoint_dtype: str
    unavailable: Mapping[str, str] = field(default_factory=dict)

    def refusal(self, capabilities: QuantizationCapabilities) -> str | None:
        """Return why a method cannot be used, or None if it can."""
        if self.device not in capabilities.devices:
            return f"device {self.device} is not among {_listed(capabilities.devices)}"
        if self.dtype not in capabilities.dtypes:
            return (
                f"compute dtype {self.dtype} is not among {_listed(capabilities.dtypes)}; set "
                f"--dtype {min(capabilities.dtypes)}"
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
        PluginError: The method does not exist or cannot be used; or the user asked for another one
            than the checkpoint's own.
    """
    registry = registries.quantizations
    if description.quantization is not None:
        return _decision(_checkpoint_method(registry, description.quantization, wanted, query))
    if wanted == AUTO:
        return _lossless_method(registry, query)
    if wanted == NONE:
        return Decision(None, ASKED_FOR, all_others(registry, wanted))
    entry = _named_method(registry, wanted, query)
    return _decision(Choice(ROLE, entry, ASKED_FOR, all_others(registry, wanted)))


def after_loading(registries: Registries, description: ModelDescription) -> ModelDescription:
    """Return the description of an ordinary checkpoint for one that the loader dequantizes."""
    own = description.quantization
    if own not in DEQUANTIZED or own in registries.quantizations:
        return description
    dtype = dequantized_dtype(description.config)
    return replace(description, quantization=None, checkpoint_dtype=dtype)


def dequantized_dtype(config: Mapping[str, Any]) -> str:
    """Return the name of the dtype that weights had before they were quantized."""
    return str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")


def _decision(choice: Choice) -> Decision[Choice | None]:
    return Decision(choice, choice.reason, choice.rejected)


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
    offers = (find_offer(registry, name) for name in registry)
    able = [
        other.name
        for other, problem in offers
        if problem is None and query.refusal_of_ordinary(other.capabilities) is None
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
        if reason is None and query.checkpoint_dtype not in entry.capabilities.lossless_for:
            reason = _lossy_reason(query)
        reason = reason or query.refusal_of_ordinary(entry.capabilities)
        if reason is None:
            able.append(entry)
        else:
            rejected.append(Rejection(name, cause_of(reason)))
    if not able and query.checkpoint_dtype == query.dtype:
        return Decision(None, "auto: the checkpoint's own dtype", tuple(rejected))
    if not able:
        return Decision(None, f"auto: {_why_no_method(query, rejected)}", tuple(rejected))
    best = max(able, key=lambda entry: entry.capabilities.priority)
    rejected += (
        Rejection(entry.name, f"supported, but {best.name} has priority")
        for entry in able
        if entry is not best
    )
    reason = f"auto: it is lossless for {query.checkpoint_dtype} weights"
    return _decision(Choice(ROLE, best, reason, tuple(rejected)))


def _lossy_reason(query: QuantizationQuery) -> str:
    return f"it is not lossless for {query.checkpoint_dtype} weights"


def _why_no_method(query: QuantizationQuery, rejected: Iterable[Rejection]) -> str:
    """Describe the effect of the compute dtype on the weights, and why no method was chosen.

    Methods that are not lossless are left out.
    """
    what = "represents" if query.dtype == WIDEST else "rounds"
    reasons = [f"{r.name}: {r.reason}" for r in rejected if r.reason != _lossy_reason(query)]
    return "; ".join((f"{query.dtype} {what} all {query.checkpoint_dtype} values", *reasons))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
