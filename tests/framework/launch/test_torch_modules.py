"""Unused modules of torch: deferred in quire's own processes, and as usable as without that."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from quire.config import Settings
from quire.launch.composing import compose_engine
from quire.launch.torch_modules import COMPILERS, TESTED_VERSIONS, UNUSED, defer_unused_modules
from quire.plugins.isolation import PluginRecord
from quire.plugins.loading import load_plugins
from quire.plugins.registry import Source
from quire.process.deferred_modules import DeferredModules
from quire.testing.checkpoints import write_checkpoint

INSTALL = """
import sys
from quire.launch.torch_modules import COMPILERS, UNUSED
from quire.process.deferred_modules import DeferredModules
deferred = DeferredModules(UNUSED, COMPILERS)
deferred.install()
import torch
assert deferred.pending == sorted(UNUSED), deferred.pending
"""
SERVE = """
import json, sys
from quire.config import Settings
from quire.launch.composing import compose_engine
from quire.launch.core_startup import start_core
from quire.launch.torch_modules import UNUSED, defer_unused_modules
from quire.messages import EngineRequest
from quire.plugins.loading import load_plugins
from quire.sampling_params import SamplingParams
options = json.loads(sys.argv[2])
settings = Settings.from_options({"model": sys.argv[1], "num_kv_blocks": 64} | options)
composed = compose_engine(settings, load_plugins())
assert "torch" not in sys.modules
defer_unused_modules(composed)
core, _ = start_core(composed)
params = SamplingParams(temperature=0.7, top_p=0.9, top_k=20, min_p=0.01, logprobs=2,
                        repetition_penalty=1.1, presence_penalty=0.5, seed=3, prompt_logprobs=1)
plain = SamplingParams(temperature=0.0, logit_bias={3: 2.0}, min_tokens=2)
for number, one in enumerate((params, plain, plain)):
    core.add(EngineRequest(
        request_id=str(number), token_ids=[1, 2, 3], params=one, max_tokens=6, seed=0))
while core.has_work():
    core.step()
[deferred] = [finder for finder in sys.meta_path if type(finder).__name__ == "DeferredModules"]
pending = deferred.pending
assert pending == sorted(UNUSED), set(UNUSED) - set(pending)
core.shutdown()
"""


def run(code, *arguments):
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM").folder)


@pytest.fixture(scope="module")
def composed(folder):
    return compose_engine(Settings.from_options({"model": folder}), load_plugins())


def test_the_installed_torch_is_one_that_was_tested():
    assert torch.__version__.rpartition(".")[0] in TESTED_VERSIONS


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_invariant": True},
        {"load_format": "dummy"},
        {"quantization": "int8"},
        {"attention_backend": "torch_sdpa"},
        {"kv_cache_dtype": "fp8"},
        {"enable_lora": True},
    ],
    ids=lambda options: "-".join(options) or "default",
)
def test_serving_executes_none_of_the_unused_modules(folder, options):
    run(SERVE, folder, json.dumps(options))


@pytest.mark.parametrize(
    "code",
    [
        "assert torch.distributions.Normal(0.0, 1.0).sample().shape == ()",
        "from torch.distributions.normal import Normal",
        "assert torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))",
        "assert torch.nn.quantized.dynamic.Linear and torch.ao.nn.quantized.Linear",
        "assert torch.quantization.quantize_dynamic(torch.nn.Linear(2, 2))",
        "assert torch.compile(lambda x: x + 1, backend='eager')(torch.ones(2)).sum() == 4\n"
        "assert deferred.pending == []",
        "from torch._meta_registrations import register_meta\n"
        "x = torch.ones(2, 3, device='meta')\n"
        "assert torch.linalg.qr(x)[0].shape == (2, 2)",
    ],
    ids=["distribution", "below", "export", "quantized", "quantize", "compile", "meta"],
)
def test_a_deferred_module_works_when_it_is_used(code):
    run(f"{INSTALL}{code}")


@pytest.fixture
def installed(monkeypatch):
    """Deferrals that are installed; torch counts as not imported."""
    found = []
    monkeypatch.setattr(DeferredModules, "install", lambda deferred: found.append(deferred))
    monkeypatch.delitem(sys.modules, "torch")
    return found


def test_they_are_deferred_on_a_cpu_with_own_plugins(composed, installed):
    defer_unused_modules(composed)
    assert len(installed) == 1


def test_nothing_is_deferred_if_torch_is_imported_already(composed, installed, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", torch)
    defer_unused_modules(composed)
    assert installed == []


def test_nothing_is_deferred_for_a_gpu(composed, installed):
    defer_unused_modules(
        replace(composed, composition=replace(composed.composition, device="cuda"))
    )
    assert installed == []


@pytest.mark.parametrize(("state", "expected"), [("loaded", 0), ("blocked", 1)])
def test_nothing_is_deferred_with_a_plugin_of_another_package(composed, installed, state, expected):
    stranger = PluginRecord(Source("acme", "acme-quire", "1.0"), "acme.plugin", state)
    plugins = replace(composed.plugins, records=(*composed.plugins.records, stranger))
    defer_unused_modules(replace(composed, plugins=plugins))
    assert len(installed) == expected


def test_nothing_is_deferred_for_a_model_of_transformers(folder, installed):
    settings = Settings.from_options({"model": folder, "model_impl": "transformers"})
    defer_unused_modules(compose_engine(settings, load_plugins()))
    assert installed == []


def test_nothing_is_deferred_for_a_torch_that_was_not_tested(composed, installed, monkeypatch):
    monkeypatch.setattr("quire.launch.torch_modules.version", lambda name: "2.130.0")
    defer_unused_modules(composed)
    assert installed == []


def test_the_compilers_are_modules_of_torch(monkeypatch):
    assert all((__import__(name), name in sys.modules)[1] for name in COMPILERS)
    assert not set(COMPILERS) & set(UNUSED)
