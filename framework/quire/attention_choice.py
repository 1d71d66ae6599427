"""The model asks, each attention backend answers by what it declared, and priority decides."""

from collections.abc import Iterable, Mapping

from quire.choosing import AUTO, check_present, default_entry, ours
from quire.composition import Choice, Rejection
from quire.config import Settings
from quire.discovery import locate
from quire.errors import RefusedError
from quire.interfaces.attention import AttentionQuery
from quire.interfaces.kv_cache import KVLayer, KVSpecCapabilities
from quire.interfaces.model import ModelDescription
from quire.plugins import Registries
from quire.registry import Entry, check_api


def attention_queries(
    settings: Settings,
    registries: Registries,
    description: ModelDescription,
    device: str,
    dtype: str,
) -> list[AttentionQuery]:
    """Return what the model asks of a backend, once for each kind of its layers."""
    tp_size = settings.parallel.tensor_parallel_size

    def query(layer: KVLayer) -> AttentionQuery:
        entry = default_entry(registries.kv_cache_specs, layer.spec)
        spec: KVSpecCapabilities = entry.capabilities
        window = layer.param(spec.window_param) if spec.window_param else None
        return AttentionQuery(
            device=device,
            dtype=dtype,
            kv_dtype=dtype,
            num_heads=max(1, description.num_heads // tp_size),
            num_kv_heads=max(1, layer.num_kv_heads // tp_size),
            head_dim=layer.head_dim,
            block_size=settings.cache.block_size,
            layout=spec.layout,
            sliding_window=window or description.sliding_window,
            attention_chunk=layer.param(spec.chunk_param) if spec.chunk_param else None,
            logit_soft_cap=description.logit_soft_cap,
            batch_invariant=settings.model.batch_invariant,
        )

    return list(dict.fromkeys(map(query, description.kv_layers)))


def choose_attention_backend(
    registries: Registries, wanted: str, queries: Iterable[AttentionQuery]
) -> Choice:
    """Choose a backend that can serve all of the model's layers.

    Raises:
        PluginError: The one that was asked for does not exist or cannot serve, or none can.
    """
    registry = registries.attention_backends
    refusals: dict[str, str | None] = {}
    able: dict[str, Entry] = {}
    for name in registry:
        entry = registry.entry(name) if name == wanted else ours(registry, name)
        refusals[name] = _refusal(entry, queries) if entry else "several plugins offer it"
        if entry is not None and refusals[name] is None:
            able[name] = entry
    if wanted != AUTO:
        entry = registry.entry(wanted)
        check_api(entry)
        check_present(entry)
        if reason := refusals[wanted]:
            others = ", ".join(able) or "none of the installed ones"
            raise RefusedError(
                f"attention backend {wanted!r} cannot serve this model: {reason}; can: {others}"
            )
        return Choice("attention backend", entry, "asked for", _rejections(refusals, wanted))
    if not able:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise RefusedError(f"no attention backend can serve this model ({reasons or 'none'})")
    best = max(able.values(), key=lambda entry: entry.capabilities.priority)
    why = "the only one that can" if len(able) == 1 else "the highest priority of those that can"
    rejected = _rejections(refusals, best.name)
    return Choice("attention backend", best, f"auto: {why}", rejected)


def _refusal(entry: Entry, queries: Iterable[AttentionQuery]) -> str | None:
    """Return why a backend cannot serve, or None if it can."""
    if entry.api not in entry.kind.apis:
        return f"it speaks version {entry.api} of the interface"
    if locate(entry.reference) is None:
        return f"there is no module for {entry.reference!r}"
    reasons = (entry.capabilities.refusal(query) for query in queries)
    return next((reason for reason in reasons if reason is not None), None)


def _rejections(refusals: Mapping[str, str | None], chosen: str) -> tuple[Rejection, ...]:
    return tuple(
        Rejection(name, reason or f"it can; {chosen} was preferred")
        for name, reason in refusals.items()
        if name != chosen
    )
