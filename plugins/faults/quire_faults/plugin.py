"""Registration of the parts that inject faults; without `QUIRE_FAULTS` nothing is registered."""

from typing import Any

from quire import Registrar, hookimpl
from quire.interfaces.attention import AttentionCapabilities, KVBackend
from quire.interfaces.executor import Executor, ExecutorCapabilities
from quire.interfaces.kv_transfer import KVStoreCapabilities, KVStoreScheduler
from quire.interfaces.sampling import SamplerCapabilities, SamplerStep
from quire.interfaces.scheduling import SchedulingPolicy, SchedulingPolicyCapabilities
from quire.interfaces.structured_output import GrammarCapabilities, StructuredOutputBackend
from quire.messages import EngineOutput, EngineRequest
from quire_faults.injection import injection

DTYPES = frozenset({"float32", "bfloat16", "float16"})
ATTENTION = AttentionCapabilities(
    devices=frozenset({"cpu"}), dtypes=DTYPES, kv_dtypes=DTYPES, priority=-1000
)
EXECUTOR = ExecutorCapabilities(max_tensor_parallel_size=None, max_pipeline_parallel_size=None)


@hookimpl
def register_attention_backends(registry: Registrar[type[KVBackend]]) -> None:
    """Register the attention backend."""
    _offer(registry, "attention:FaultyAttention", ATTENTION)


@hookimpl
def register_samplers(registry: Registrar[type[SamplerStep]]) -> None:
    """Register the sampler step."""
    capabilities = SamplerCapabilities(stage="bias", is_vocab_parallel=True)
    _offer(registry, "sampler:FaultyStep", capabilities)


@hookimpl
def register_structured_output(registry: Registrar[type[StructuredOutputBackend]]) -> None:
    """Register the structured-output backend."""
    _offer(registry, "grammar:FaultyGrammars", GrammarCapabilities(frozenset({"choice"})))


@hookimpl
def register_scheduling_policies(registry: Registrar[type[SchedulingPolicy]]) -> None:
    """Register the scheduling policy."""
    _offer(registry, "policy:FaultyPolicy", SchedulingPolicyCapabilities())


@hookimpl
def register_kv_stores(registry: Registrar[type[KVStoreScheduler]]) -> None:
    """Register the KV store."""
    worker = "quire_faults.kv_store:FaultyStoreWorker"
    _offer(registry, "kv_store:FaultyStore", KVStoreCapabilities(worker=worker))


@hookimpl
def register_executors(registry: Registrar[type[Executor]]) -> None:
    """Register the executor."""
    _offer(registry, "executor:FaultyExecutor", EXECUTOR, api=2)


if injection().concerns("request_received"):

    @hookimpl
    def request_received(request: EngineRequest) -> None:
        """Inject the faults of this hook."""
        del request
        injection().reach("request_received")


if injection().concerns("request_finished"):

    @hookimpl
    def request_finished(request: EngineRequest, output: EngineOutput) -> None:
        """Inject the faults of this hook."""
        del request, output
        injection().reach("request_finished")


def _offer(registry: Registrar[Any], reference: str, capabilities: object, api: int = 1) -> None:
    """Add a part, if there are rules."""
    if injection().rules:
        registry.add("faults", f"quire_faults.{reference}", api=api, capabilities=capabilities)
