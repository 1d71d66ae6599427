"""Registration of the plugins of this package. Imports nothing heavy."""

from quire import hookimpl
from quire.interfaces.attention import AttentionCapabilities
from quire.interfaces.http_route import HTTPRouteCapabilities
from quire.interfaces.model import ModelCapabilities
from quire.interfaces.sampling import RequestField, SamplerCapabilities
from quire.interfaces.scheduling import SchedulingPolicyCapabilities
from quire.interfaces.tool_parsing import ToolParserCapabilities

TOP_N_SIGMA = RequestField(
    "top_n_sigma", float, 0.0, 0.0, 100.0, "Standard deviations below the largest logit; 0 is off."
)


@hookimpl
def register_models(registry):
    """Register the Acme architecture."""
    registry.add(
        "AcmeForCausalLM",
        "acme_quire.model:AcmeForCausalLM",
        capabilities=ModelCapabilities(describe="acme_quire.model_config:describe"),
    )


@hookimpl
def register_attention_backends(registry):
    """Register an attention backend in plain torch."""
    registry.add(
        "acme_plain",
        "acme_quire.attention:PlainAttention",
        capabilities=AttentionCapabilities(
            devices=frozenset({"cpu", "cuda"}),
            dtypes=frozenset({"float32"}),
            kv_dtypes=frozenset({"float32"}),
            priority=-1,
        ),
    )


@hookimpl
def register_samplers(registry):
    """Register top-n-sigma, which reads its own request field."""
    registry.add(
        "acme_top_n_sigma",
        "acme_quire.sampler:TopNSigma",
        capabilities=SamplerCapabilities(stage="filter", fields=(TOP_N_SIGMA,)),
    )


@hookimpl
def register_scheduling_policies(registry):
    """Register a policy that runs short requests first."""
    registry.add(
        "acme_shortest_first",
        "acme_quire.policy:ShortestFirst",
        capabilities=SchedulingPolicyCapabilities(),
    )


@hookimpl
def register_tool_parsers(registry):
    """Register a parser for calls of the form `[[call NAME {...}]]`."""
    registry.add(
        "acme_calls",
        "acme_quire.tool_parser:AcmeCalls",
        capabilities=ToolParserCapabilities(template_markers=("[[call ",)),
    )


@hookimpl
def register_routes(registry):
    """Register a route that generates; a server has it with `--routes acme_continue`."""
    registry.add(
        "acme_continue",
        "acme_quire.route:ContinueText",
        capabilities=HTTPRouteCapabilities("/acme/continue", generates=True),
    )
