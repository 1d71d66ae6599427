"""Each layer asks, each attention backend answers by what it declared, and priority decides.

Layers that speak one layout share a backend where one can serve them all. Where none can, each kind
of them gets the best that can serve it, so one model may mix backends.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from quire.compose.choosing import AUTO, check_present
from quire.compose.composition import Choice, Rejection
from quire.config import Settings
from quire.errors import RefusedError
from quire.interfaces.attention import AttentionCapabilities, AttentionQuery
from quire.interfaces.kv_cache import KVLayer, KVSpecCapabilities
from quire.interfaces.model import ModelDescription
from quire.plugins.discovery import locate
from quire.plugins.loading import Registries
from quire.plugins.registry import Entry, Registry, check_api

ROLE = "attention backend"
COMMON_BLOCK_SIZES = (16, 32, 64, 128)  # tried where the backends' defaults differ
NOBODY = "none of the installed ones"

Queries = Mapping[KVLayer, AttentionQuery]


@dataclass(frozen=True, slots=True)
class ChosenBackends:
    """Who attends.

    Attributes:
        backends: Each once; the first serves most layers. None where no layer keeps anything.
        layer_backends: For each of the model's `kv_layers`, in order, its place in `backends`.
    """

    backends: tuple[Choice, ...]
    layer_backends: tuple[int, ...]


def attention_queries(
    settings: Settings,
    registries: Registries,
    description: ModelDescription,
    device: str,
    dtype: str,
    compute_capability: int | None = None,
    native_unavailable_reason: str | None = None,
) -> dict[KVLayer, AttentionQuery]:
    """Return what each layer of the model asks of a backend."""
    tp_size = settings.parallel.tensor_parallel_size

    def query(layer: KVLayer) -> AttentionQuery:
        entry = registries.kv_cache_specs.entry(layer.spec)
        spec: KVSpecCapabilities = entry.capabilities
        window = layer.param(spec.window_param) if spec.window_param else None
        return AttentionQuery(
            device=device,
            dtype=dtype,
            kv_dtype=settings.cache.kv_dtype(dtype),
            num_heads=max(1, description.num_heads // tp_size),
            num_kv_heads=max(1, layer.num_kv_heads // tp_size),
            head_dim=layer.head_dim,
            block_size=settings.cache.block_size,
            layout=spec.layout,
            sliding_window=window or description.sliding_window,
            attention_chunk=layer.param(spec.chunk_param) if spec.chunk_param else None,
            logit_soft_cap=description.logit_soft_cap,
            has_sinks=layer.has_sinks,
            latent_dim=layer.param("latent_dim") if spec.layout == "mla" else None,
            batch_invariant=settings.model.batch_invariant,
            compute_capability=compute_capability,
            native_unavailable_reason=native_unavailable_reason,
        )

    return {layer: query(layer) for layer in description.kv_layers}


def choose_attention_backends(
    registries: Registries,
    wanted: str,
    queries: Queries,
    refused: Mapping[str, str] = MappingProxyType({}),
) -> ChosenBackends:
    """Choose who serves each layer.

    Args:
        registries: Where the backends are found.
        wanted: A name, which then serves every layer whose layout it declares; or "auto".
        queries: What each layer asks.
        refused: Backends that were chosen before and could not serve, with their reasons.

    Raises:
        PluginError: The one that was asked for does not exist or cannot serve, or none can.
    """
    registry = registries.attention_backends
    offers = [_offer(registry, name, wanted, refused.get(name)) for name in registry]
    asked = None if wanted == AUTO else _asked_for(registry, wanted, offers)
    chosen: dict[AttentionQuery, _Offer] = {}
    for layout in dict.fromkeys(query.layout for query in queries.values()):
        kinds = _kinds(query for query in queries.values() if query.layout == layout)
        is_asked = asked is not None and layout in asked.capabilities.layouts
        chosen |= _choose(offers, asked if is_asked else None, kinds, queries)
    if asked is not None and queries and asked not in chosen.values():
        raise _cannot(asked, offers, _kinds(queries.values()))
    served = Counter(chosen[query].name for query in queries.values())
    names = [name for name, _ in served.most_common()]
    return ChosenBackends(
        tuple(_choice(name, offers, asked, chosen, queries) for name in names),
        tuple(names.index(chosen[query].name) for query in queries.values()),
    )


def common_block_size(backends: Sequence[Choice]) -> int:
    """Return the block size of an engine whose user names none: one that every backend serves.

    Raises:
        RefusedError: There is none.
    """
    every: list[AttentionCapabilities] = [choice.entry.capabilities for choice in backends]
    sizes = [there.block_sizes for there in every if there.block_sizes is not None]
    known: Iterable[int] = COMMON_BLOCK_SIZES
    if sizes:
        known = sorted(frozenset[int].intersection(*sizes))
    for size in (*(there.default_block_size for there in every), *known):
        if all(size in served for served in sizes):
            return size
    wants = "; ".join(
        f"{choice.name}: {_listed(choice.entry.capabilities.block_sizes or ())}"
        for choice in backends
    )
    raise RefusedError(
        f"no block size is served by every attention backend of this model ({wants}); choose "
        "another with attention_backend"
    )


@dataclass(frozen=True, slots=True)
class _Offer:
    """A backend that is installed; `reason` says why nobody can use it at all."""

    name: str
    entry: Entry
    reason: str | None = None

    @property
    def capabilities(self) -> AttentionCapabilities:
        there: AttentionCapabilities = self.entry.capabilities
        return there

    def refusal(self, kinds: Iterable[AttentionQuery]) -> str | None:
        """Return why it cannot serve all of these, or None if it can."""
        if self.reason is not None:
            return self.reason
        reasons = (self.capabilities.refusal(query) for query in kinds)
        return next((reason for reason in reasons if reason is not None), None)


def _offer(registry: Registry[type], name: str, wanted: str, reason: str | None) -> _Offer:
    entry = registry.entry(name) if name == wanted else registry.uncontested(name)
    if entry is None:
        return _Offer(name, registry.contested()[name][0], "several plugins offer it")
    if entry.api not in entry.kind.apis:
        return _Offer(name, entry, f"it speaks version {entry.api} of the interface")
    if locate(entry.reference) is None:
        return _Offer(name, entry, f"there is no module for {entry.reference!r}")
    return _Offer(name, entry, reason)


def _asked_for(registry: Registry[type], wanted: str, offers: Iterable[_Offer]) -> _Offer:
    entry = registry.entry(wanted)
    check_api(entry)
    check_present(entry)
    return next(offer for offer in offers if offer.name == wanted)


def _choose(
    offers: Sequence[_Offer],
    asked: _Offer | None,
    kinds: Sequence[AttentionQuery],
    queries: Queries,
) -> dict[AttentionQuery, _Offer]:
    """Choose for the layers of one layout: one for all, or the best for each kind of them."""
    if asked is not None:
        if asked.refusal(kinds) is not None:
            raise _cannot(asked, offers, kinds)
        return dict.fromkeys(kinds, asked)
    if (best := _best(offers, kinds)) is not None:
        return dict.fromkeys(kinds, best)
    chosen = {}
    for query in kinds:
        if (best := _best(offers, [query])) is None:
            raise _nobody_can(offers, query, queries)
        chosen[query] = best
    return chosen


def _best(offers: Iterable[_Offer], kinds: Sequence[AttentionQuery]) -> _Offer | None:
    """Return the highest priority of those that can serve all of these."""
    able = [offer for offer in offers if offer.refusal(kinds) is None]
    return max(able, key=lambda offer: offer.capabilities.priority, default=None)


def _choice(
    name: str,
    offers: Sequence[_Offer],
    asked: _Offer | None,
    chosen: Mapping[AttentionQuery, _Offer],
    queries: Queries,
) -> Choice:
    """Say why a backend serves what it serves, and why the others do not."""
    kinds = [query for query, offer in chosen.items() if offer.name == name]
    refusals = {offer.name: offer.refusal(kinds) for offer in offers}
    layers = [layer for layer, query in queries.items() if query in kinds]
    if asked is not None and name == asked.name:
        why = "asked for"
    elif sum(reason is None for reason in refusals.values()) == 1:
        why = "auto: the only one that can"
    else:
        why = "auto: the highest priority of those that can"
    if len(layers) < len(queries):
        specs = ", ".join(dict.fromkeys(layer.spec for layer in layers))
        why += f", for {len(layers)} of {len(queries)} layers ({specs})"
    entry = next(offer.entry for offer in offers if offer.name == name)
    rejected = tuple(
        Rejection(other, reason or f"it can; {name} was preferred")
        for other, reason in refusals.items()
        if other != name
    )
    return Choice(ROLE, entry, why, rejected)


def _cannot(
    asked: _Offer, offers: Iterable[_Offer], kinds: Sequence[AttentionQuery]
) -> RefusedError:
    able = [offer.name for offer in offers if offer.refusal(kinds) is None]
    types = asked.capabilities.dtypes
    is_wrong_type = any(query.dtype not in types for query in kinds)
    way_out = f"set --dtype {min(types)}; " if is_wrong_type and types else ""
    return RefusedError(
        f"attention backend {asked.name!r} cannot serve this model: {asked.refusal(kinds)}; "
        f"{way_out}can: {', '.join(able) or NOBODY}"
    )


def _nobody_can(offers: Iterable[_Offer], query: AttentionQuery, queries: Queries) -> RefusedError:
    layers = [layer for layer, other in queries.items() if other == query]
    what = "this model"
    if len(layers) < len(queries):
        what = f"the {len(layers)} layer(s) of this model that keep {layers[0].spec}"
    reasons = "; ".join(f"{offer.name}: {offer.refusal([query])}" for offer in offers)
    return RefusedError(f"no attention backend can serve {what} ({reasons or 'none installed'})")


def _kinds(queries: Iterable[AttentionQuery]) -> list[AttentionQuery]:
    return list(dict.fromkeys(queries))


def _listed(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(sizes))) or "any"
