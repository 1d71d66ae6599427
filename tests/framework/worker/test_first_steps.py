"""A part that fails for every request stops start-up; warm-up steps change no request's state."""

import re

import pytest
import torch
from installed import sites
from recorded_engine import AS_ON_A_GPU, runner_of

from quire import LLM
from quire.errors import CapacityError, EngineDeadError, RefusedError
from quire.layers.attention.caching_layer import CachingLayer
from quire.testing.checkpoints import write_checkpoint
from quire.worker.first_steps import STEPS_WITH_KERNELS, run_warm_up_steps

site = pytest.fixture(sites)
BROKEN = """
    import math

    from quire import hookimpl
    from quire.interfaces.attention import AttentionCapabilities
    from quire.interfaces.model import ModelCapabilities
    from quire.interfaces.sampling import LogitsProcessor, SamplerCapabilities
    from quire_attention_backends.torch.torch_sdpa import TorchSDPABackend
    from quire_samplers.gumbel.torch_gumbel import TorchGumbel
    from quire_samplers.plugin import TEMPERATURE
    from quire_models.decoder.decoder_model import DecoderForCausalLM
    from quire_models.family_table import describe as describe_family

    class RowTooFew(TorchSDPABackend):
        def forward(self, *args):
            return super().forward(*args)[:-1]

    class NoDecode(TorchSDPABackend):
        def prepare(self, step):
            if step.max_query_len == 1:
                raise ZeroDivisionError("no request has many tokens")
            return super().prepare(step)

    class Forgetful(LogitsProcessor):
        def is_neutral(self, fields):
            return True  # and yet tried

        def apply(self, logits, rows):
            logits += 1  # and returns nothing

    class Raises(Forgetful):
        def apply(self, logits, rows):
            raise ZeroDivisionError("by no means")

    def describe(config):
        return describe_family(config | {"architectures": ["Qwen3ForCausalLM"]})

    class NoHead(DecoderForCausalLM):
        def compute_logits(self, rows):
            return super().compute_logits(rows)[:1]

    class NoNumbers(DecoderForCausalLM):
        def compute_logits(self, rows):
            logits = super().compute_logits(rows)
            logits[1:] *= math.nan  # the first row stays finite: every row has to be checked
            return logits

    class NarrowHead(DecoderForCausalLM):
        def compute_logits(self, rows):
            return super().compute_logits(rows)[:, 1:]

    class NoTail(DecoderForCausalLM):
        def forward(self, input_ids, positions, batch):
            return super().forward(input_ids, positions, batch)[:-1]

    class NoBody(DecoderForCausalLM):
        def forward(self, input_ids, positions, batch):
            raise ZeroDivisionError("no body")

    class Beyond(TorchGumbel):
        def sample(self, logits, rows):
            return super().sample(logits, rows) + logits.shape[1]

    FLOAT = frozenset({"float32"})

    @hookimpl
    def register_attention_backends(registry):
        for name in ("RowTooFew", "NoDecode"):
            there = AttentionCapabilities(
                devices=frozenset({"cpu"}), dtypes=FLOAT, kv_dtypes=FLOAT, priority=-9
            )
            registry.add(name, f"acme:{name}", capabilities=there)

    @hookimpl
    def register_samplers(registry):
        for name in ("Forgetful", "Raises"):
            there = SamplerCapabilities(stage="bias")
            registry.add(name, f"acme:{name}", capabilities=there)
        there = SamplerCapabilities(stage="sample", fields=(TEMPERATURE,))
        registry.add("Beyond", "acme:Beyond", capabilities=there)

    @hookimpl
    def register_models(registry):
        for name in ("NoHead", "NarrowHead", "NoNumbers", "NoTail", "NoBody"):
            there = ModelCapabilities(describe="acme:describe")
            registry.add(name, f"acme:{name}", capabilities=there)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("m"), "Qwen3ForCausalLM", head_dim=32).folder


def start(folder, **options):
    LLM(str(folder), max_num_seqs=3, max_model_len=64, dtype="float32", **options).close()


BY_ACME = r"of plugin acme \(acme 1\.0\)"
ALWAYS = {
    "a row too few": (
        {"attention_backend": "RowTooFew"},
        rf"attention backend 'RowTooFew' {BY_ACME} of layer \S+ returned a float32 tensor of shape"
        r" \[2, .*must return .* \[3, ",
    ),
    "no decode": (
        {"attention_backend": "NoDecode"},
        rf"attention backend 'NoDecode' {BY_ACME} failed: ZeroDivisionError: no request has many",
    ),
    "forgets to return": (
        {"samplers": ["default", "Forgetful"]},
        rf"sampler 'Forgetful' {BY_ACME} returned None; it must return a float32 tensor",
    ),
    "a token beyond the vocabulary": (
        {"samplers": ["temperature", "Beyond"]},
        rf"sampler 'Beyond' {BY_ACME} returned token id \d+; the vocabulary has 320 tokens",
    ),
    "a sampler raises": (
        {"samplers": ["default", "Raises"]},
        rf"sampler 'Raises' {BY_ACME} failed: ZeroDivisionError: by no means",
    ),
}


@pytest.mark.parametrize("fault", ALWAYS)
def test_a_part_that_always_fails_stops_the_start(site, folder, fault):
    options, message = ALWAYS[fault]
    site.install("acme", BROKEN)
    with pytest.raises(RefusedError, match=message) as refused:
        start(folder, kernels="torch", **options)
    (option,) = options
    named = re.findall(r"\(--(\S+)\)", str(refused.value))
    assert named == [option.replace("_", "-")], "the remedy is that of the part that failed"
    assert refused.value.__cause__ is not None


def test_so_it_does_in_a_process_of_its_own(site, folder):
    options, message = ALWAYS["a sampler raises"]
    site.install("acme", BROKEN)
    with pytest.raises(RefusedError, match=message):
        start(folder, engine_process=True, **options)


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("NoBody", rf"model 'NoBody' {BY_ACME} with attention .* failed: ZeroDivisionError: no b"),
        (
            "NoTail",
            rf"the forward pass of model 'NoTail' {BY_ACME} with attention .* returned a float32 "
            r"tensor of shape \[2, .*must return a floating-point tensor of shape \[3, ",
        ),
        (
            "NoHead",
            rf"compute_logits of model 'NoHead' {BY_ACME} .* \[1, 320\].*must .* \[2, 320\]",
        ),
        (
            "NoNumbers",
            rf"model 'NoNumbers' {BY_ACME} with .*: no token can be sampled for this request: its "
            "logits are not finite",
        ),
        ("NarrowHead", r"compute_logits of model 'NarrowHead' .* \[2, 319\].*must .* \[2, 320\]"),
    ],
)
def test_so_does_a_model(site, tmp_path, architecture, message):
    site.install("acme", BROKEN)
    folder = write_checkpoint(tmp_path, architecture, layout="qwen3").folder
    with pytest.raises(RefusedError, match=message) as refused:
        start(folder, kernels="torch")
    assert "--samplers" not in str(refused.value)


@pytest.fixture(scope="module")
def llm(folder):
    options = AS_ON_A_GPU | {"enforce_eager": True, "max_num_seqs": 3, "max_model_len": 64}
    with LLM(str(folder), **options) as llm:
        yield llm


def test_they_write_to_the_null_block_alone(llm):
    runner = runner_of(llm)
    layers = [each for each in runner.model.modules() if isinstance(each, CachingLayer)]
    assert len(layers) > 1
    run_warm_up_steps(runner, 60, STEPS_WITH_KERNELS)
    for layer in layers:
        assert layer._kv_cache[0].any(), "the step was computed"
        assert not layer._kv_cache[1:].any()
    assert not runner.tables.token_ids.any()
    assert not runner.tables.num_known.any()
    assert not runner.tables.num_computed.any()


@pytest.mark.parametrize("kernels", ["torch", "auto"])
def test_so_they_do_where_the_host_gathers_and_nothing_is_traced(folder, kernels):
    options = {"max_num_seqs": 3, "max_model_len": 64, "kernels": kernels}
    with LLM(str(folder), dtype="float32", **options) as llm:
        runner = runner_of(llm)
        layers = [each for each in runner.model.modules() if isinstance(each, CachingLayer)]
        for layer in layers:
            assert layer._kv_cache[0].any(), "the step was computed before there is a request"
            assert not layer._kv_cache[1:].any()
        assert not runner.tables.token_ids.any()


def test_they_keep_to_small_limits(folder):
    options = {"max_num_seqs": 1, "max_model_len": 2, "max_num_batched_tokens": 2}
    with LLM(str(folder), kernels="torch", **options) as llm:
        run_warm_up_steps(runner_of(llm), 1, STEPS_WITH_KERNELS)


def failing_with(monkeypatch, llm, error):
    def fail(_):
        raise error

    monkeypatch.setattr(runner_of(llm).pipeline, "warm_up", fail)
    run_warm_up_steps(runner_of(llm), 8)


def test_a_device_that_fails_is_no_parts_fault(monkeypatch, llm):
    with pytest.raises(EngineDeadError, match="the device failed"):
        failing_with(monkeypatch, llm, torch.AcceleratorError("CUDA error: unspecified launch"))


def test_lack_of_memory_is_no_parts_fault(monkeypatch, llm):
    with pytest.raises(torch.OutOfMemoryError):
        failing_with(monkeypatch, llm, torch.OutOfMemoryError("no room"))


def test_the_reason_of_a_part_that_fails_is_quoted(monkeypatch, llm):
    with pytest.raises(RefusedError, match=r"warm-up step failed: too small; correct that part"):
        failing_with(monkeypatch, llm, CapacityError("too small"))


def test_they_sample_from_the_last_token_of_each_request(monkeypatch, llm):
    runner, seen = runner_of(llm), []
    monkeypatch.setattr(runner.model, "compute_logits", seen.append)
    monkeypatch.setattr(runner, "hidden_states_of", lambda *_: torch.arange(42.0).unsqueeze(1))
    with pytest.raises(RefusedError, match=r"compute_logits .* returned None"):
        run_warm_up_steps(runner, 60, [(40, 2)])
    assert seen[0].flatten().tolist() == [39, 41]
