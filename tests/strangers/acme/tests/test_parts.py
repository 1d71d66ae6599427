"""Contract tests of the plugins of this package, with quire's conformance kits."""

from acme_quire.attention import PlainAttention
from acme_quire.route import ContinueText
from acme_quire.sampler import TopNSigma
from acme_quire.tool_parser import AcmeCalls
from acme_reference import MAX_POSITIONS, SIZES, acme_logits, acme_weights

from quire.plugins.loading import load_plugins
from quire.testing.attention import AttentionBackendContract
from quire.testing.http_route import HTTPRouteContract
from quire.testing.model import ModelContract
from quire.testing.sampling import LogitsProcessorContract
from quire.testing.tool_parsing import ToolParserContract, ToolSample

OFFERED = load_plugins().registries


class TestAcmeModel(ModelContract):
    architecture = "AcmeForCausalLM"
    config = {"max_positions": MAX_POSITIONS, **SIZES}  # noqa: RUF012 - as the kit has it

    def weights(self, config):
        return acme_weights()

    def reference(self, config, weights, token_ids):
        return acme_logits(weights, token_ids)


class TestPlainAttention(AttentionBackendContract):
    backend_class = PlainAttention
    capabilities = OFFERED.attention_backends.entry("acme_plain").capabilities


class TestTopNSigma(LogitsProcessorContract):
    step_class = TopNSigma
    capabilities = OFFERED.samplers.entry("acme_top_n_sigma").capabilities
    active = ({"top_n_sigma": 0.5}, {"top_n_sigma": 2.0})


class TestAcmeCalls(ToolParserContract):
    parser = AcmeCalls
    samples = (
        ToolSample("no call", "no call"),
        ToolSample('[[call f {"a": 1}]]', "", (("f", '{"a": 1}'),)),
        ToolSample(
            'so: [[call f {}]] and [[call g {"x": "]] \\" [[call "}]].',
            "so:  and .",
            (("f", "{}"), ("g", '{"x": "]] \\" [[call "}')),
        ),
        ToolSample('[[call f {"city": "Oslo"}]]', "", (("f", '{"city": "Oslo"}'),)),
        ToolSample("[[call f {", "[[call f {"),
        ToolSample("[[call f 1]] [", "[[call f 1]] ["),
        ToolSample("[[[call f {}]]", "[", (("f", "{}"),)),
        ToolSample("[[cal", "[[cal"),
    )


class TestContinueText(HTTPRouteContract):
    route = ContinueText
    capabilities = OFFERED.routes.entry("acme_continue").capabilities
    bodies = (
        {"text": "Once", "seeds": [1, 2]},
        {"text": "Once", "seeds": [1, 2], "stream": True},
    )
    refused = (
        {"text": " ", "seeds": [1]},
        {"text": "Once", "seeds": []},
        {"text": "Once", "seeds": [1], "max_tokens": 0},
    )
