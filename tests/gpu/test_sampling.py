"""The sampler steps on a GPU, by the kit; and their draws follow the definition of the noise."""

from quire.config import PluginSettings
from quire.plugins import load_plugins
from quire.testing.sampling import AbsorbingDrawContract
from quire_samplers.gumbel import Gumbel
from quire_samplers.min_p import MinP
from quire_samplers.temperature import Temperature
from quire_samplers.top_k_top_p import TopKTopP

SAMPLERS = load_plugins(PluginSettings(disable_plugin_autoload=True)).registries.samplers


class TestGumbel(AbsorbingDrawContract):
    step_class = Gumbel
    capabilities = SAMPLERS.entry("gumbel").capabilities
    device = "cuda"
    active = ({"temperature": 1.0}, {"temperature": 0.7})
    neutral = {"temperature": 0.0}  # noqa: RUF012
    absorbed = (Temperature, MinP, TopKTopP)
    mixed = (
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        {"temperature": 1.5, "min_p": 0.02, "top_p": 0.9, "top_k": 40},
    )
