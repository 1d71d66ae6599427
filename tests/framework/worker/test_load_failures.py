"""Parts that fail to load are replaced, and the replacement is reported."""

import logging

import pytest
from installed import sites
from native_libraries import failing_library

from quire import LLM, SamplingParams
from quire.config import Settings
from quire.errors import NativeUnavailableError, RefusedError
from quire.launch.composing import compose_engine
from quire.native.availability import native_unavailable_reason
from quire.native.layer_kernels import cpu_layers, cpu_lora
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint
from quire_attention_backends.cpu import cpu_attention
from quire_quantizations import linear_library as weights_library
from quire_samplers import cpu_gumbel

site = pytest.fixture(sites)

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
NEEDS_KERNELS = pytest.mark.skipif(
    native_unavailable_reason() is not None,
    reason="native kernels are chosen where they can run",
)
BACKENDS = """
    from quire import hookimpl
    from quire.errors import RefusedError
    from quire.interfaces.attention import AttentionCapabilities
    from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend

    class Broken(TorchSDPABackend):
        def __init__(self, shape):
            raise RefusedError(f"{type(self).__name__} has no library")

    class AlsoBroken(Broken):
        pass

    @hookimpl
    def register_attention_backends(registry):
        def add(name, reference, priority, block_size):
            there = AttentionCapabilities(
                devices=frozenset({"cpu"}), dtypes=frozenset({"float32"}),
                kv_dtypes=frozenset({"float32"}), block_sizes=frozenset({block_size}),
                default_block_size=block_size, priority=priority,
            )
            registry.add(name, f"acme:{reference}", capabilities=there)

        add("acme_first", "Broken", 1000, 64)
        add("acme_second", "AlsoBroken", 900, 128)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("m"), "Qwen3ForCausalLM").folder)


PARTS = {
    "layers": cpu_layers,
    "attention": cpu_attention,
    "weights": weights_library,
    "draws": cpu_gumbel,
}


@pytest.fixture
def broken_layers(tmp_path, monkeypatch):
    """The kernels of layers do not compile."""
    monkeypatch.setattr(cpu_layers, "LIBRARY", failing_library(tmp_path))


@pytest.fixture(params=PARTS)
def broken_part(request, tmp_path, monkeypatch):
    """The kernels of one part do not compile, and those of all others do."""
    monkeypatch.setattr(PARTS[request.param], "LIBRARY", failing_library(tmp_path))
    return request.param


def generate_tokens(folder, **options):
    with LLM(folder, max_num_seqs=2, **options) as llm:
        (output,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], GREEDY)
        return output.outputs[0].token_ids, llm.composition


@pytest.mark.parametrize("engine_process", [False, True], ids=["here", "process"])
def test_the_next_best_backend_replaces_an_unusable_one(site, folder, caplog, engine_process):
    expected, _ = generate_tokens(folder, attention_backend="torch_sdpa")
    site.install("acme", BACKENDS)
    settings = Settings.from_options({"model": folder})
    chosen = compose_engine(settings, load_plugins(settings.plugins)).composition
    assert [choice.name for choice in chosen.attention_backends] == ["acme_first"]
    assert chosen.block_size == 64
    tokens, composition = generate_tokens(folder, engine_process=engine_process)
    assert list(tokens) == list(expected)
    (backend,) = composition.attention_backends
    assert backend.entry.source.distribution == "quire"
    assert composition.block_size == 16
    reasons = {rejection.name: rejection.reason for rejection in backend.rejected}
    assert reasons["acme_first"] == "Broken has no library"
    assert reasons["acme_second"] == "AlsoBroken has no library"
    if not engine_process:
        warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert [line for line in warnings if "acme" in line] == [
            "attention backend acme_first cannot be used here: Broken has no library; the next "
            "best backend replaces it",
            "attention backend acme_second cannot be used here: AlsoBroken has no library; the "
            "next best backend replaces it",
        ]


def test_a_named_backend_that_is_unusable_stops_the_start(site, folder):
    site.install("acme", BACKENDS)
    with pytest.raises(RefusedError, match="'acme_second' cannot be used here: AlsoBroken has no"):
        generate_tokens(folder, attention_backend="acme_second")


@NEEDS_KERNELS
def test_layers_whose_kernels_do_not_compile_run_torch(folder, broken_layers):
    tokens, composition = generate_tokens(folder)
    assert composition.kernels == "torch"
    assert list(tokens) == list(generate_tokens(folder, kernels="torch")[0])


@NEEDS_KERNELS
def test_named_kernels_that_do_not_compile_stop_the_start(folder, broken_layers):
    with pytest.raises(NativeUnavailableError):
        generate_tokens(folder, kernels="native")


@NEEDS_KERNELS
def test_a_named_backend_whose_kernels_do_not_compile_stops_the_start(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(cpu_attention, "LIBRARY", failing_library(tmp_path))
    with pytest.raises((NativeUnavailableError, RefusedError), match="'cpu' cannot be used here"):
        generate_tokens(folder, attention_backend="cpu")


@NEEDS_KERNELS
def test_any_part_whose_named_kernels_do_not_compile_stops_the_start(folder, broken_part):
    with pytest.raises((NativeUnavailableError, RefusedError)):
        generate_tokens(folder, kernels="native")


@NEEDS_KERNELS
def test_adapters_whose_named_kernels_do_not_compile_stop_the_start(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(cpu_lora, "LIBRARY", failing_library(tmp_path))
    with pytest.raises(NativeUnavailableError):
        generate_tokens(folder, kernels="native", enable_lora=True)
    tokens, composition = generate_tokens(folder, enable_lora=True)
    assert composition.kernels == "native"
    assert list(tokens) == list(generate_tokens(folder)[0])


@NEEDS_KERNELS
def test_the_failure_of_one_part_is_reported_and_others_keep_their_kernels(folder, broken_part):
    tokens, composition = generate_tokens(folder)
    assert list(tokens) == list(generate_tokens(folder, kernels="torch")[0])
    (attention,) = composition.attention_backends
    seen = {
        "layers": composition.kernels,
        "attention": attention.name,
        "weights": composition.weights.partition(":")[0],
        "draws": composition.samplers[-1].name,
    }
    whole = {
        "layers": "native",
        "attention": "cpu",
        "weights": "float32 (auto",
        "draws": "cpu_gumbel",
    }
    lost = {
        "layers": {"layers": "torch", "draws": "categorical"},
        "attention": {"attention": "torch_sdpa"},
        "weights": {"weights": "float32 (float32 has no kernels"},
        "draws": {"draws": "categorical"},
    }
    assert seen == whole | lost[broken_part]


@NEEDS_KERNELS
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_packed_weights_whose_kernels_do_not_compile_have_the_same_values(
    folder, name, tmp_path, monkeypatch
):
    expected, _ = generate_tokens(folder, quantization=name)
    monkeypatch.setattr(weights_library, "LIBRARY", failing_library(tmp_path))
    tokens, composition = generate_tokens(folder, quantization=name)
    assert list(tokens) == list(expected)
    assert composition.weights.startswith(f"{name} (asked for; dequantized to float32")


@NEEDS_KERNELS
@pytest.mark.parametrize("name", ["none", "int8", "int4", "auto"])
def test_dummy_weights_may_have_any_quantization(folder, name, tmp_path, monkeypatch):
    tokens, composition = generate_tokens(folder, load_format="dummy", quantization=name)
    if name not in ("auto", "none"):
        assert composition.quantization.name == name
    monkeypatch.setattr(weights_library, "LIBRARY", failing_library(tmp_path))
    by_torch, _ = generate_tokens(folder, load_format="dummy", quantization=name)  # the same values
    assert list(tokens) == list(by_torch)
