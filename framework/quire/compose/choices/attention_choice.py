"""Selection of attention backends, by their declared capabilities and priorities.

All layers of one KV layout use the same backend if one supports them all. Otherwise each kind of
layer gets the best backend that supports it, so one model may mix backends.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from quire.compose.choices.choosing import ASKED_FOR, AUTO, check_present, find_offer
from quire.compose.choices.probes import cause_of, reason_by
from quire.compose.composition import Choice, Rejection, hidden_dtype
from quire.config import Settings
from quire.errors import RefusedError
from quire.interfaces.attention import AttentionCapabilities, AttentionQuery
from quire.interfaces.kv_cache import KVLayer, KVSpecCapabilities
from quire.interfaces.model import ModelDescription
from quire.machine.machine import Machine
from quire.plugins.loading import Registries
from quire.plugins.registry import Entry, Registry, check_api

ROLE = "attention backend"
COMMON_BLOCK_SIZES = (16, 32, 64, 128)  # tried where the backends' defaults differ
NONE_INSTALLED = "none of the installed ones"

Queries = Mapping[KVLayer, AttentionQuery]


@dataclass(frozen=True, slots=True)
class ChosenBackends:
    """Attention backends of a model.

    Attributes:
        backends: Distinct backends; the first serves most layers. Empty if no layer has KV.
        layer_backends: Index in `backends` for each of the model's `kv_layers`, in order.
    """

    backends: tuple[Choice, ...]
    layer_backends: tuple[int, ...]


def attention_queries(
    settings: Settings,
    registries: Registries,
    description: ModelDescription,
    device: str,
    dtype: str,
    kernels: str,
    machine: Machine,
) -> dict[KVLayer, AttentionQuery]:
    """Return the requirements of each layer of the model on its attention backend.

    Args:
        settings: Settings as given by the user.
        registries: Registries of the installed plugins.
        description: Description of the model.
        device: "cpu" or "cuda".
        dtype: Compute dtype.
        kernels: Kernels of layers.
        machine: Machine to plan for.
    """
    tp_size = settings.parallel.tensor_parallel_size

    def query(layer: KVLayer) -> AttentionQuery:
        entry = registries.kv_cache_specs.entry(layer.spec)
        spec: KVSpecCapabilities = entry.capabilities
        window = layer.param(spec.window_param) if spec.window_param else None
        return AttentionQuery(
            device=device,
            dtype=hidden_dtype(dtype, kernels),
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
            has_alibi=layer.has_alibi,
            latent_dim=layer.param("latent_dim") if spec.layout == "mla" else None,
            batch_invariant=settings.model.batch_invariant,
            compute_capability=machine.compute_capability,
            native_unavailable_reason=machine.native_unavailable_reason,
        )

    return {layer: query(layer) for layer in description.kv_layers}


def choose_attention_backends(
    registries: Registries,
    wanted: str,
    queries: Queries,
    unavailable: Mapping[str, str] = MappingProxyType({}),
) -> ChosenBackends:
    """Choose the attention backend of each layer.

    Args:
        registries: Registries of the installed plugins.
        wanted: Name of a backend, which then serves every layer whose layout it declares; or
            "auto".
        queries: Requirements of each layer.
        unavailable: Reasons why backends cannot run on this machine, by their probes.

    Raises:
        PluginError: The named backend does not exist or does not support a layer, or no installed
            backend does.
    """
    registry = registries.attention_backends
    offers = [_offer(registry, name, wanted, unavailable) for name in registry]
    asked = None if wanted == AUTO else _asked_for(registry, wanted, offers)
    chosen: dict[AttentionQuery, _Offer] = {}
    for layout in dict.fromkeys(query.layout for query in queries.values()):
        kinds = _kinds(query for query in queries.values() if query.layout == layout)
        is_asked = asked is not None and layout in asked.capabilities.layouts
        chosen |= _choose(offers, asked if is_asked else None, kinds, queries)
    if asked is not None and queries and asked not in chosen.values():
        raise _named_backend_error(asked, offers, _kinds(queries.values()))
    served = Counter(chosen[query].name for query in queries.values())
    names = [name for name, _ in served.most_common()]
    return ChosenBackends(
        tuple(_choice(name, offers, asked, chosen, queries) for name in names),
        tuple(names.index(chosen[query].name) for query in queries.values()),
    )


def common_block_size(backends: Sequence[Choice]) -> int:
    """Return the default block size: one that every backend supports.

    Raises:
        RefusedError: No block size is supported by all backends.
    """
    declared: list[AttentionCapabilities] = [choice.entry.capabilities for choice in backends]
    sizes = [each.block_sizes for each in declared if each.block_sizes is not None]
    common: Iterable[int] = COMMON_BLOCK_SIZES
    if sizes:
        common = sorted(frozenset[int].intersection(*sizes))
    for size in (*(each.default_block_size for each in declared), *common):
        if all(size in supported for supported in sizes):
            return size
    by_backend = "; ".join(
        f"{choice.name}: {_listed(choice.entry.capabilities.block_sizes or ())}"
        for choice in backends
    )
    raise RefusedError(
        f"no block size is supported by every attention backend of this model ({by_backend}); "
        "choose another backend with attention_backend"
    )


@dataclass(frozen=True, slots=True)
class _Offer:
    """An installed backend.

    Attributes:
        reason: Reason why it cannot be used at all, or None.
    """

    name: str
    entry: Entry
    reason: str | None = None

    @property
    def capabilities(self) -> AttentionCapabilities:
        capabilities: AttentionCapabilities = self.entry.capabilities
        return capabilities

    def refusal(self, kinds: Iterable[AttentionQuery]) -> str | None:
        """Return why the backend cannot serve all these layers, or None if it can."""
        if self.reason is not None:
            return self.reason
        reasons = (self._refusal_of(query) for query in kinds)
        return next((reason for reason in reasons if reason is not None), None)

    def _refusal_of(self, query: AttentionQuery) -> str | None:
        reason, own = self.capabilities.refusal(query), self.capabilities.refuses
        if reason is not None or own is None:
            return reason
        return reason_by(own, "its function `refuses`", query)


def _offer(
    registry: Registry[type], name: str, wanted: str, unavailable: Mapping[str, str]
) -> _Offer:
    entry, reason = find_offer(registry, name, wanted)
    return _Offer(name, entry, reason or unavailable.get(entry.capabilities.probe))


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
    """Choose for the layers of one layout: one backend for all, or the best for each kind."""
    if asked is not None:
        if asked.refusal(kinds) is not None:
            raise _named_backend_error(asked, offers, kinds)
        return dict.fromkeys(kinds, asked)
    if (best := _best(offers, kinds)) is not None:
        return dict.fromkeys(kinds, best)
    chosen = {}
    for query in kinds:
        if (best := _best(offers, [query])) is None:
            raise _no_backend_error(offers, query, queries)
        chosen[query] = best
    return chosen


def _best(offers: Iterable[_Offer], kinds: Sequence[AttentionQuery]) -> _Offer | None:
    """Return the backend of the highest priority among those that can serve all these layers."""
    able = [offer for offer in offers if offer.refusal(kinds) is None]
    return max(able, key=lambda offer: offer.capabilities.priority, default=None)


def _choice(
    name: str,
    offers: Sequence[_Offer],
    asked: _Offer | None,
    chosen: Mapping[AttentionQuery, _Offer],
    queries: Queries,
) -> Choice:
    """Describe the choice of a backend, with the reasons why the others were not chosen."""
    kinds = [query for query, offer in chosen.items() if offer.name == name]
    refusals = {offer.name: offer.refusal(kinds) for offer in offers}
    layers = [layer for layer, query in queries.items() if query in kinds]
    if asked is not None and name == asked.name:
        reason = ASKED_FOR
    elif sum(refusal is None for refusal in refusals.values()) == 1:
        reason = "auto: the only one that can"
    else:
        reason = "auto: the highest priority of those that can"
    if len(layers) < len(queries):
        specs = ", ".join(dict.fromkeys(layer.spec for layer in layers))
        reason += f", for {len(layers)} of {len(queries)} layers ({specs})"
    entry = next(offer.entry for offer in offers if offer.name == name)
    rejected = tuple(
        Rejection(other, cause_of(refusal or f"supported, but {name} has priority"))
        for other, refusal in refusals.items()
        if other != name
    )
    return Choice(ROLE, entry, reason, rejected)


def _named_backend_error(
    asked: _Offer, offers: Iterable[_Offer], kinds: Sequence[AttentionQuery]
) -> RefusedError:
    able = [offer.name for offer in offers if offer.refusal(kinds) is None]
    types = asked.capabilities.dtypes
    is_wrong_type = any(query.dtype not in types for query in kinds)
    way_out = f"set --dtype {min(types)}; " if is_wrong_type and types else ""
    return RefusedError(
        f"attention backend {asked.name!r} cannot serve this model: {asked.refusal(kinds)}; "
        f"{way_out}backends that can: {', '.join(able) or NONE_INSTALLED}"
    )


def _no_backend_error(
    offers: Iterable[_Offer], query: AttentionQuery, queries: Queries
) -> RefusedError:
    layers = [layer for layer, other in queries.items() if other == query]
    what = "this model"
    if len(layers) < len(queries):
        what = f"the {len(layers)} layer(s) of this model with KV-cache spec {layers[0].spec}"
    reasons = "; ".join(f"{offer.name}: {offer.refusal([query])}" for offer in offers)
    return RefusedError(f"no attention backend can serve {what} ({reasons or 'none installed'})")


def _kinds(queries: Iterable[AttentionQuery]) -> list[AttentionQuery]:
    return list(dict.fromkeys(queries))


def _listed(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(sizes))) or "any"
