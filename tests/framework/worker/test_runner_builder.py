"""Samplers are what they declare, in the order in which they are blamed."""

import pytest
import torch
from installed import sites

from quire.config import Settings
from quire.errors import PluginLoadError
from quire.launch.composing import compose_engine
from quire.layers import SingleDevice
from quire.plugins.loading import load_plugins
from quire.testing.checkpoints import write_checkpoint
from quire.worker.batch.slots import SlotTables
from quire.worker.parts import WorkerParts
from quire.worker.runner_builder import build_pipeline

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
        return build_pipeline(parts, tables, SingleDevice())

    return build


def test_each_step_is_called_by_its_own_name(build):
    pipeline = build("default", "Changes")
    names = [type(step).__name__ for step in (*pipeline.steps, pipeline.sampler)]
    assert names == ["Changes", "Temperature", "MinP", "TopKTopP", "Categorical"]
    called = [name.split("'")[1] for name in pipeline._names]
    assert called == ["Changes", "temperature", "min_p", "top_k_top_p", "categorical"]
    assert pipeline.sampler_name.startswith("sampler 'categorical'")


def test_a_sampler_in_another_stage_is_refused(build):
    with pytest.raises(PluginLoadError, match="'Draws' declares stage 'bias' and is a Draws"):
        build("default", "Draws")


def test_a_logits_processor_in_the_last_stage_is_refused(build):
    with pytest.raises(PluginLoadError, match="'Late' declares stage 'sample' and is a Changes"):
        build("temperature", "Late")
