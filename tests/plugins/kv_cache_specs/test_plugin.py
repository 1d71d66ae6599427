"""Every registered spec can be loaded, without torch, and names the parameters it needs."""

import subprocess
import sys

import pytest

from quire.config import PluginSettings
from quire.interfaces.kv_cache import KVCacheSpec, KVLayer
from quire.plugins.loading import load_plugins

PARAMS = {
    "full_attention": (),
    "sliding_window": (("window", 20),),
    "chunked_local_attention": (("chunk", 20),),
    "cross_attention": (("encoder_len", 20),),
    "mla_attention": (("latent_dim", 6),),
    "recurrent_state": (("state_shapes", ((4, 8),)),),
}


@pytest.fixture(scope="module")
def registry():
    return load_plugins(PluginSettings(disable_plugin_autoload=True)).registries.kv_cache_specs


def test_these_are_offered(registry):
    assert sorted(registry) == sorted(PARAMS)


@pytest.mark.parametrize("name", PARAMS)
def test_each_can_be_loaded_and_built(registry, name):
    spec = registry.get(name)(KVLayer("layers.0", name, 1, 8, PARAMS[name]), 16, "float32")
    assert isinstance(spec, KVCacheSpec)
    assert spec.page_bytes > 0


@pytest.mark.parametrize("name", PARAMS)
def test_the_parameters_that_a_backend_must_know_are_declared(registry, name):
    there = registry.entry(name).capabilities
    declared = {there.window_param, there.chunk_param} - {None}
    assert declared <= dict(PARAMS[name]).keys()


def test_each_declares_what_a_backend_of_its_layers_must_know(registry):
    declared = {
        name: (it.layout, it.window_param, it.chunk_param)
        for name, it in ((name, registry.entry(name).capabilities) for name in registry)
    }
    assert declared == {
        "full_attention": ("kv", None, None),
        "sliding_window": ("kv", "window", None),
        "chunked_local_attention": ("kv", None, "chunk"),
        "cross_attention": ("cross", None, None),
        "mla_attention": ("mla", None, None),
        "recurrent_state": ("state", None, None),
    }


def test_no_spec_loads_torch():
    modules = (
        "full_attention", "sliding_window", "chunked_local", "cross_attention", "mla_attention",
        "recurrent_state",
    )  # fmt: skip
    names = ", ".join(f"quire_kv_cache_specs.{m}" for m in modules)
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
