"""Layers of several kinds in one model: each gets the backend that was chosen for its kind."""

from dataclasses import replace

import pytest
import torch
from installed import sites
from mla_parts import LAYERS, PLUGIN, TinyMLAForCausalLM, write_tiny_mla

from quire.config import Settings
from quire.engine.kv_cache.kv_plan import fixed_plan
from quire.errors import PluginLoadError, RefusedError
from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.mla import MLAShape
from quire.launch.composing import compose_engine
from quire.layers import LayerContext
from quire.plugins.loading import load_plugins
from quire.worker.loading.kv_cache_binding import LayerBinding
from quire.worker.parts import WorkerParts
from quire_attention_backends.mla.torch_mla import TorchMLABackend
from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend

CPU = torch.device("cpu")
CONTEXT = LayerContext(dtype=torch.float32, device=CPU)
NUM_BLOCKS = 9
site = pytest.fixture(sites)


class Scene:
    """A composed model, and memory for its layers."""

    def __init__(self, folder, **options) -> None:
        self.settings = Settings.from_options(
            {
                "model": str(folder),
                "load_format": "dummy",
                "dtype": "float32",
                "kernels": "torch",  # on any machine the same backends
                **options,
            }
        )
        plugins = load_plugins(self.settings.plugins)
        self.registries = plugins.registries
        self.composition = compose_engine(self.settings, plugins).composition
        self.model = TinyMLAForCausalLM(self.composition.description, CONTEXT)

    def bind(self, *kinds):
        """Bind the layers of some kinds; of all if none is named."""
        layers = self.composition.description.kv_layers
        specs = [
            self.registries.kv_cache_specs.get(layer.spec)(layer, 16, "float32")
            for layer in layers
            if not kinds or layer.spec in kinds
        ]
        plan = fixed_plan(specs, NUM_BLOCKS)
        plan = KVPlan(plan.num_blocks, plan.groups, plan.tensors, max_model_len=256)
        memory = {
            name: torch.zeros(tensor.num_bytes, dtype=torch.uint8).view(NUM_BLOCKS, -1)
            for tensor in plan.tensors
            for name in tensor.layer_names
        }
        parts = WorkerParts.load(self.settings, self.composition, self.registries)
        binding = LayerBinding(self.settings, parts, CPU, torch.float32)
        return binding.bind(self.model, plan, memory)

    def layer(self, name):
        return self.model.get_submodule(f"{name}.attn")


@pytest.fixture
def folder(site, tmp_path):
    site.install("tiny-mla", PLUGIN)
    return write_tiny_mla(tmp_path / "model")


@pytest.fixture
def scene(folder):
    return Scene(folder)


def test_each_kind_of_layer_has_its_own_backend(scene):
    backends, groups = scene.bind()
    by_layer = {name: type(backends[scene.layer(name).backend_index]) for name in LAYERS}
    assert by_layer == {
        "mla.0": TorchMLABackend,
        "full.1": TorchSDPABackend,
        "mla.2": TorchMLABackend,
    }
    assert len(groups) == len(backends)


def test_layers_of_one_shape_in_one_group_share_a_backend(scene):
    backends, groups = scene.bind("mla_attention")
    assert groups == [0]
    first, last = scene.layer("mla.0"), scene.layer("mla.2")
    assert first._backend is last._backend is backends[0]
    assert (first.backend_index, last.backend_index) == (0, 0)
    assert first._kv_cache.data_ptr() != last._kv_cache.data_ptr()


def test_a_backend_knows_the_compute_dtype(folder):
    backends, _ = Scene(folder, dtype="bfloat16").bind()
    assert {backend.shape.product_dtype for backend in backends} == {"bfloat16"}


def test_a_latent_layer_declares_how_its_row_is_split(scene):
    backends, _ = scene.bind()
    shape = backends[scene.layer("mla.0").backend_index].shape
    assert isinstance(shape, MLAShape)
    assert (shape.latent_dim, shape.rope_dim, shape.head_dim, shape.num_kv_heads) == (32, 16, 48, 1)


@pytest.mark.parametrize(
    ("asked", "others"), [("torch_sdpa", "torch_mla"), ("torch_mla", "torch_sdpa")]
)
def test_a_named_backend_gets_the_layers_that_it_supports(folder, asked, others):
    composition = Scene(folder, attention_backend=asked).composition
    for layer in composition.description.kv_layers:
        speaks = layer.spec == "mla_attention"
        wanted = "torch_mla" if speaks else "torch_sdpa"
        assert composition.attention_backend_of(layer).name == wanted
    assert {choice.name for choice in composition.attention_backends} == {asked, others}


def test_a_backend_of_another_contract_is_refused(scene):
    """Only a plugin that declares a layout without its contract can bring this about."""
    ordinary = next(c for c in scene.composition.attention_backends if c.name == "torch_sdpa")
    scene.composition = replace(
        scene.composition, attention_backends=(ordinary,), layer_backends=(0, 0, 0)
    )
    message = (
        r"layer mla\.0\.attn is a MLAAttention and needs a quire\.interfaces\.mla\.MLABackend, "
        r"but attention backend 'torch_sdpa' .* is TorchSDPABackend, .* choose another "
        r"--attention-backend"
    )
    with pytest.raises(PluginLoadError, match=message):
        scene.bind()


@pytest.mark.parametrize("head_dim", [11, 13])
def test_a_layer_with_another_head_dim_than_described_is_refused(scene, head_dim):
    scene.layer("full.1").head_dim = head_dim
    message = rf"full\.1\.attn has head_dim={head_dim}, .* head_dim=12"
    with pytest.raises(PluginLoadError, match=message):
        scene.bind()


def test_a_layer_with_linear_biases_that_the_description_forgets_is_refused(scene):
    scene.layer("full.1").has_alibi = True
    with pytest.raises(PluginLoadError, match=r"full\.1\.attn has has_alibi=True.*must agree"):
        scene.bind()


def test_a_layer_with_sinks_that_the_description_forgets_is_refused(scene):
    scene.layer("full.1").has_sinks = True
    with pytest.raises(PluginLoadError, match=r"full\.1\.attn has has_sinks=True.*must agree"):
        scene.bind()


def test_a_layer_gets_its_backends_name_for_errors(scene):
    scene.bind()
    called = scene.layer("mla.2")._callee
    assert called.startswith("attention backend 'torch_mla' of ")
    assert called.endswith(" of layer mla.2.attn")


def test_a_latent_cannot_be_kept_in_bytes(folder):
    with pytest.raises(RefusedError, match=r"spec mla_attention.*torch_mla: KV dtype int8 is not"):
        Scene(folder, kv_cache_dtype="int8")
