"""A third party's sampler fuses its own step, and none of the same name from another plugin."""

import importlib

import pytest
from installed import sites

from quire import LLM, SamplingParams

OFFSET = """
    import torch

    from quire import hookimpl
    from quire.interfaces.sampling import LogitsProcessor, RequestField, SamplerCapabilities

    FIELD = RequestField("offset", float, 0.0, 0.0, 1e6, "Added to the logit of one token.")


    class Offset(LogitsProcessor):
        def is_neutral(self, fields):
            return fields["offset"] == 0

        def apply(self, logits, rows):
            logits[:, TOKEN] += rows.field("offset")[:, 0]
            return logits


    def add_offset(registry):
        registry.add(
            "offset",
            __name__ + ":Offset",
            capabilities=SamplerCapabilities(
                stage="bias", fields=(FIELD,), is_fusible=True
            ),
        )
"""
PICK = (
    OFFSET.replace("TOKEN", "9")
    + """
    from quire.interfaces.sampling import Sampler

    METHODS = []
    TEMPERATURE = RequestField("temperature", float, 1.0, 0.0, 100.0)


    class Pick(Sampler):
        '''Samples the most likely token, and records how.'''

        def sample(self, logits, rows):
            METHODS.append("sample")
            return logits.argmax(-1)

        def sample_fused(self, logits, rows):
            METHODS.append("fused")
            logits = logits.clone()
            logits[:, 9] += rows.field("offset")[:, 0]
            return logits.argmax(-1)


    @hookimpl
    def register_samplers(registry):
        add_offset(registry)
        registry.add(
            "pick",
            __name__ + ":Pick",
            capabilities=SamplerCapabilities(
                stage="sample", fields=(FIELD, TEMPERATURE), fuses=("offset",)
            ),
        )
"""
)
OTHER = (
    OFFSET.replace("TOKEN", "11")
    + """

    @hookimpl
    def register_samplers(registry):
        add_offset(registry)
"""
)


@pytest.fixture
def site(tmp_path, monkeypatch):
    for each in sites(tmp_path, monkeypatch):
        each.install("acme-pick", PICK)
        yield each


def sampled(**options):
    """Tokens of a request with an offset, and the methods of the sampler since the start-up."""
    with LLM("demo", samplers=("offset", "pick"), **options) as llm:
        methods = importlib.import_module("acme_pick").METHODS
        methods.clear()
        params = SamplingParams(max_tokens=4, ignore_eos=True, extra_args={"offset": 1e6})
        (output,) = llm.generate("quire is", params)
        return list(output.outputs[0].token_ids), set(methods)


def test_a_sampler_fuses_the_step_of_its_own_distribution(site):
    assert sampled() == ([9] * 4, {"fused"})


def test_a_step_of_the_same_name_from_another_distribution_runs_itself(site):
    site.install("other-offset", OTHER)
    assert sampled(prefer=("samplers:offset=other_offset",)) == ([11] * 4, {"sample"})
    assert sampled(prefer=("samplers:offset=acme_pick",)) == ([9] * 4, {"fused"})
