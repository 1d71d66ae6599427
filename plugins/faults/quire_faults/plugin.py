"""Registration of the parts that inject faults; without `QUIRE_FAULTS` nothing is registered."""

from quire import Registrar, hookimpl
from quire.interfaces.attention import AttentionCapabilities, KVBackend
from quire.interfaces.executor import Executor, ExecutorCapabilities
from quire.interfaces.kv_transfer import KVStoreCapabilities, KVStoreScheduler
from quire.interfaces.sampling import SamplerCapabilities, SamplerStep
from quire.interfaces.scheduling import SchedulingPolicy, SchedulingPolicyCapabilities
from quire.interfaces.structured_output import GrammarCapabilities, StructuredOutputBackend
from quire.messages import EngineOutput, EngineRequest
from quire_faults.injection import injection

NAME = "faults"
DTYPES = frozenset({"float32", "bfloat16", "float16"})

if injection().rules:

    @hookimpl
    def register_attention_backends(registry: Registrar[type[KVBackend]]) -> None:
        """Register the attention backend."""
        registry.add(
            NAME,
            "quire_faults.attention:FaultyAttention",
            capabilities=AttentionCapabilities(
                devices=frozenset({"cpu"}), dtypes=DTYPES, kv_dtypes=DTYPES, priority=-1000
            ),
        )

    @hookimpl
    def register_samplers(registry: Registrar[type[SamplerStep]]) -> None:
        """Register the sampler step."""
        registry.add(
            NAME,
            "quire_faults.sampler:FaultyStep",
            capabilities=SamplerCapabilities(stage="bias", is_vocab_parallel=True),
        )

    @hookimpl
    def register_structured_output(registry: Registrar[type[StructuredOutputBackend]]) -> None:
        """Register the structured-output backend."""
        registry.add(
            NAME,
            "quire_faults.grammar:FaultyGrammars",
            capabilities=GrammarCapabilities(frozenset({"choice"})),
        )

    @hookimpl
    def register_scheduling_policies(registry: Registrar[type[SchedulingPolicy]]) -> None:
        """Register the scheduling policy."""
        registry.add(
            NAME,
            "quire_faults.policy:FaultyPolicy",
            capabilities=SchedulingPolicyCapabilities(),
        )

    @hookimpl
    def register_kv_stores(registry: Registrar[type[KVStoreScheduler]]) -> None:
        """Register the KV store."""
        registry.add(
            NAME,
            "quire_faults.kv_store:FaultyStore",
            capabilities=KVStoreCapabilities(worker="quire_faults.kv_store:FaultyStoreWorker"),
        )

    @hookimpl
    def register_executors(registry: Registrar[type[Executor]]) -> None:
        """Register the executor."""
        registry.add(
            NAME,
            "quire_faults.executor:FaultyExecutor",
            api=2,
            capabilities=ExecutorCapabilities(
                max_tensor_parallel_size=None, max_pipeline_parallel_size=None
            ),
        )


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
