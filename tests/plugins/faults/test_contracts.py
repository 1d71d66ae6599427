"""Without faults every part of the plugin keeps the contract of its kind."""

from typing import ClassVar

import torch

from quire.interfaces.attention import AttentionCapabilities
from quire.interfaces.executor import ExecutorCapabilities
from quire.testing.attention.attention_contract import AttentionBackendContract
from quire.testing.executor import ExecutorContract
from quire.testing.scheduling import SchedulingPolicyContract
from quire.testing.structured_output import StructuredOutputContract
from quire_faults.attention import FaultyAttention
from quire_faults.executor import FaultyExecutor
from quire_faults.grammar import FaultyGrammars
from quire_faults.policy import FaultyPolicy
from quire_faults.sampler import FaultyStep

DTYPES = frozenset({"float32", "bfloat16", "float16"})


class TestFaultyExecutor(ExecutorContract):
    executor_class = FaultyExecutor
    capabilities = ExecutorCapabilities(
        max_tensor_parallel_size=None, max_pipeline_parallel_size=None
    )


class TestFaultyPolicy(SchedulingPolicyContract):
    policy = FaultyPolicy


class TestFaultyGrammars(StructuredOutputContract):
    backend = FaultyGrammars
    constraints: ClassVar[frozenset[str]] = frozenset({"choice"})


class TestFaultyAttention(AttentionBackendContract):
    backend_class = FaultyAttention
    capabilities = AttentionCapabilities(
        devices=frozenset({"cpu"}), dtypes=DTYPES, kv_dtypes=DTYPES
    )


def test_the_step_changes_no_logits():
    logits = torch.tensor([[1.0, -torch.inf]])
    step = FaultyStep(2, logits.device)
    assert not step.is_neutral({})
    assert step.apply(logits, None) is logits
