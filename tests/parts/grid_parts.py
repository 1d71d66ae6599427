"""Compositions for grids of several workers: quire's parts, with executors that place any grid."""

from dataclasses import replace
from pathlib import Path

from quire.compose.checkpoint import Checkpoint
from quire.compose.compose import compose
from quire.compose.composition import Composition
from quire.config import Settings
from quire.launch.composing import Composed, compose_engine
from quire.machine.machine import Machine
from quire.plugins.loading import Plugins, Registries

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 10000.0,
    "torch_dtype": "float32",
}
MACHINE = Machine(frozenset({"avx2"}), has_cuda=False)


def placing_any_grid(registries: Registries, **limits) -> Registries:
    """Return the registries with executors that have other limits; without any by default."""
    limits = {"max_tensor_parallel_size": None, "max_pipeline_parallel_size": None} | limits
    return with_capabilities(registries, "executors", **limits)


def with_capabilities(registries: Registries, kind: str, **capabilities) -> Registries:
    """Return the registries with other capabilities of all parts of a kind."""
    changed = Registries()
    for registry in registries:
        for entry in registry.offers():
            if registry.kind.name == kind:
                own = replace(entry.capabilities, **capabilities)
                entry = replace(entry, capabilities=own)
            changed[registry.kind.name].accept([entry])
    return changed


def composed_grid(registries, config=(), machine=MACHINE, **options) -> Composition:
    """Compose for a config, which has no weights, with executors that place any grid."""
    plugins = Plugins(placing_any_grid(registries))
    checkpoint = Checkpoint("tiny", Path("tiny"), CONFIG | dict(config))
    return compose(Settings.from_options(options), plugins, checkpoint, "", machine)


def composed_engine(registries, folder, **options) -> Composed:
    """Compose for a checkpoint that exists, with executors that place any grid."""
    settings = Settings.from_options({"model": str(folder)} | options)
    return compose_engine(settings, Plugins(placing_any_grid(registries)), is_plan=True)
