"""Root of all block hashes: a hash of everything that an engine's KV depends on.

Everything that changes a key or a value, or its position in a block, is part of the hash, because
an external KV store may outlive the engine and be used by another one. So is the grid of workers: a
rank stores its own heads and layers. All ranks of an engine have the same root, so a store that is
shared by several ranks must keep the blocks of each apart.
"""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from quire.compose.checkpoint import config_bytes, weight_paths
from quire.compose.choices.choosing import AUTO
from quire.compose.composition import Choice, Composition
from quire.config import ModelSettings
from quire.interfaces.kv_cache import KVCacheSpec, KVPlan


def cache_root(settings: ModelSettings, composition: Composition, plan: KVPlan) -> bytes:
    """Return a hash of 32 bytes that is equal only for engines with interchangeable KV."""
    facts = {
        "checkpoint": _content(composition.checkpoint.folder, settings),
        "parts": [
            _part(choice)
            for choice in (
                composition.model, composition.prepared_quantization,
                *composition.attention_backends, *composition.kv_cache_specs,
            )
            if choice is not None
        ],
        "backends": composition.layer_backends,
        "weights": _weights(composition.quantization.value, settings),
        "dtypes": [composition.dtype.value, composition.hidden_dtype, composition.kv_dtype],
        "grid": [composition.grid.tp_size, *map(len, composition.stage_layers)],
        "groups": [[_layer(spec) for spec in group.layer_specs] for group in plan.groups],
    }  # fmt: skip
    return hashlib.sha256(msgspec.msgpack.encode(facts, enc_hook=repr)).digest()


def _content(folder: Path, settings: ModelSettings) -> list[Any]:
    """Identify a checkpoint by its config, and by the sizes and times of its weight files.

    A copy counts as another checkpoint, which costs cache misses. Reading all weights would cost
    more.
    """
    config = hashlib.sha256(config_bytes(folder)).digest()
    if settings.load_format == "dummy":
        return [config, "dummy", settings.dummy_seed]
    stats = [(path.name, path.stat()) for path in weight_paths(folder)]
    return [config, [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]]


def _weights(choice: Choice | None, settings: ModelSettings) -> tuple[Any, ...] | None:
    """Identify the quantization; a method that `auto` chose is lossless."""
    return None if choice is None else (_part(choice), settings.quantization != AUTO)


def _part(choice: Choice) -> tuple[str, str, str, str]:
    source = choice.entry.source
    return choice.entry.kind.name, choice.name, source.distribution, source.version


def _layer(spec: KVCacheSpec) -> list[Any]:
    layer = spec.layer
    shape = (layer.num_kv_heads, layer.head_dim, spec.tp_size, spec.page_bytes)
    return [layer.name, layer.spec, shape, layer.params, spec.block_size, spec.kv_dtype]
