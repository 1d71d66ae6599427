"""Samplers are what they declare, in the order in which they are blamed."""

import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from grid_engine import Grid, grid_engine
from installed import sites
from kernel_options import NATIVE
from recorded_engine import AS_ON_A_GPU, runner_of
from recorded_runs import RecordedRuns

from quire import LLM
from quire.config import Settings
from quire.errors import PluginLoadError, RefusedError
from quire.launch.composing import compose_engine
from quire.layers import SingleDevice
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint
from quire.worker import runner_builder
from quire.worker.batch.slots import SlotTables
from quire.worker.failures import IsolateAlone, ReportFailures
from quire.worker.parts import WorkerParts
from quire.worker.runner_builder import build_pipeline, capture_graphs

site = pytest.fixture(sites)
SAMPLERS = """
    from quire import hookimpl
    from quire.interfaces.sampling import Sampler, LogitsProcessor, SamplerCapabilities

    class Changes(LogitsProcessor):
        def is_neutral(self, fields):
            return True

        def apply(self, logits, rows):
            return logits

    class Draws(Sampler):
        def is_neutral(self, fields):
            return True

        def sample(self, logits, rows):
            return logits.argmax(-1)

    @hookimpl
    def register_samplers(registry):
        for name, stage in (("Changes", "penalty"), ("Draws", "bias")):
            registry.add(name, f"acme:{name}", capabilities=SamplerCapabilities(stage=stage))
        late = SamplerCapabilities(stage="sample")
        registry.add("Late", "acme:Changes", capabilities=late)
"""


@pytest.fixture
def build(site, tmp_path):
    """Builds the pipeline of an engine with more samplers than the built-in ones."""
    site.install("acme", SAMPLERS)
    folder = write_checkpoint(tmp_path / "m", "Qwen3ForCausalLM").folder

    def build(*samplers):
        settings = Settings.from_options(
            {"model": str(folder), "kernels": "torch", "samplers": list(samplers)}
        )
        plugins = load_plugins(settings.plugins)
        composition = compose_engine(settings, plugins).composition
        tables = SlotTables(2, 16, [4], composition.sampler_fields, torch.device("cpu"))
        parts = WorkerParts.load(settings, composition, plugins.registries)
        return build_pipeline(parts, tables, SingleDevice(), "raw_logprobs")

    return build


def test_each_step_is_called_by_its_own_name(build):
    pipeline = build("default", "Changes")
    names = [type(step).__name__ for step in (*pipeline.steps, pipeline.sampler)]
    assert names[:2] == ["ClassifierFreeGuidance", "Changes"]
    assert names[-4:] == ["TopNSigma", "TypicalP", "XTC", "TorchGumbel"]
    called = [name.split("'")[1] for name in pipeline._names]
    assert called[:2] == ["classifier_free_guidance", "Changes"]
    assert called[-4:] == ["top_n_sigma", "typical_p", "xtc", "torch_gumbel"]
    assert pipeline.sampler_name.startswith("sampler 'torch_gumbel'")


def test_a_sampler_in_another_stage_is_refused(build):
    with pytest.raises(PluginLoadError, match="'Draws' declares stage 'bias' and is a Draws"):
        build("default", "Draws")


def test_a_logits_processor_in_the_last_stage_is_refused(build):
    with pytest.raises(PluginLoadError, match="'Late' declares stage 'sample' and is a Changes"):
        build("temperature", "Late")


@NEEDS_COMPILER
def test_steps_are_traced_only_if_their_collectives_can_be(tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "quire")
    folder = write_checkpoint(tmp_path / "m", "Qwen3ForCausalLM").folder
    with LLM(str(folder), max_model_len=32, **NATIVE) as llm:
        assert runner_of(llm).graphs is not None
    assert "no CPU graphs" not in caplog.text
    monkeypatch.setattr(SingleDevice, "is_traceable", False)
    with LLM(str(folder), max_model_len=32, **NATIVE) as llm:
        assert runner_of(llm).graphs is None
    assert "decode steps have no CPU graphs and run through Python: the tensor-" in caplog.text


class OneOfTwo(SingleDevice):
    """A device whose other one says whether it could capture the same."""

    size = 2

    def __init__(self, vote: bool) -> None:
        self.vote = vote

    def all_reduce(self, x):
        return x + self.vote


@pytest.fixture
def captured(tmp_path, monkeypatch):
    """Captures the steps of an engine together with another device."""
    folder = write_checkpoint(tmp_path / "m", "Qwen3ForCausalLM", head_dim=32).folder
    monkeypatch.setattr(runner_builder, "step_capture", lambda device: RecordedRuns())
    with LLM(str(folder), max_num_seqs=2, max_model_len=32, **AS_ON_A_GPU) as llm:
        runner, composition = runner_of(llm), llm._running.composition
        assert composition.cuda_graphs.value == 2

        def captured(group, **options):
            runner.graphs = None
            capture_graphs(runner, composition, group, **options)
            return runner.graphs is not None

        yield captured


@pytest.mark.filterwarnings("ignore:overflow encountered")  # as interpreted kernels multiply
def test_steps_are_captured_on_all_devices_or_on_none(captured, caplog):
    assert captured(OneOfTwo(True))
    assert not captured(OneOfTwo(False))
    assert "CUDA graphs are off" in caplog.text
    assert "they cannot be captured on another tensor-parallel rank" in caplog.text
    with pytest.raises(RefusedError, match="cannot be captured on another tensor-parallel rank"):
        captured(OneOfTwo(False), is_required=True)


def test_a_device_that_cannot_capture_a_step_asks_the_other_one(captured, monkeypatch):
    class CannotCapture(RecordedRuns):
        def capture(self, run):
            raise RuntimeError("not here")

    monkeypatch.setattr(runner_builder, "step_capture", lambda device: CannotCapture())
    group = OneOfTwo(True)
    assert not captured(group)
    with pytest.raises(RefusedError, match="not here"):
        captured(group, is_required=True)


def test_workers_compare_tokens_and_report_failures_only_among_several(tmp_path):
    folder = write_checkpoint(tmp_path / "m", "Qwen3ForCausalLM").folder
    for grid, expected in (
        (Grid(), [(False, IsolateAlone)]),
        (Grid(1, (0, 2)), [(False, ReportFailures)] * 2),
        (Grid(2, (0, 2)), [(False, ReportFailures)] * 2 + [(True, ReportFailures)] * 2),
    ):
        with grid_engine(folder, grid) as engine:
            runners = engine.runner.runners
            found = [(runner._has_digest, type(runner._failures)) for runner in runners]
        assert found == expected
