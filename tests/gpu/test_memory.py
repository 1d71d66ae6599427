"""What the profile promises is kept: an engine never takes more of a GPU than its fraction."""

import pytest
import torch

from quire import LLM, SamplingParams
from quire.errors import CapacityError
from quire.machine.nvml import cuda_compute_capability, cuda_memory
from quire.testing.checkpoints import write_checkpoint

MIB = 2**20
SIZES = {
    "vocab_size": 32_000, "hidden_size": 1024, "intermediate_size": 4096, "head_dim": 64,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 4096,
}  # fmt: skip
STEP = {"max_num_batched_tokens": 4096, "max_num_seqs": 128, "dtype": "bfloat16"}


@pytest.fixture(autouse=True)
def _only_a_gpu(device):
    if device == "cpu":
        pytest.skip("a CPU's memory is not measured")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("m"), "Qwen3ForCausalLM", **SIZES).folder)


def used_bytes():
    free, total = torch.cuda.mem_get_info()
    return total - free


@pytest.mark.parametrize("enable_lora", [False, True])
def test_no_step_takes_more_than_gpu_memory_utilization(folder, enable_lora):
    """A full step of prompts, full decode steps and their sampling stay below the plan."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.empty_cache()
    fraction = round(used_bytes() / total + 8 * 2**30 / total, 2)
    options = STEP | {"gpu_memory_utilization": fraction, "enable_lora": enable_lora}
    params = SamplingParams(
        temperature=0.9, top_k=40, top_p=0.9, min_p=0.01, max_tokens=24, logprobs=5, ignore_eos=True
    )
    with LLM(folder, device="cuda", **options) as llm:
        prompts = [[3 + (7 * i + j) % 300 for j in range(200)] for i in range(128)]
        llm.generate(prompts, params)
        assert used_bytes() <= fraction * total
        assert used_bytes() >= fraction * total - 2**30, "and it is used"


def test_the_share_that_an_error_names_is_enough(folder):
    options = STEP | {"device": "cuda", "max_model_len": 4096}
    with pytest.raises(CapacityError, match="set gpu_memory_utilization to at least") as caught:
        LLM(folder, gpu_memory_utilization=0.001, **options)
    fraction = float(str(caught.value).rpartition("at least ")[2])
    with LLM(folder, gpu_memory_utilization=min(1.0, fraction + 0.01), **options) as llm:
        assert llm.stats().num_blocks * 16 >= 4096


def test_the_driver_and_torch_agree_on_the_device():
    properties = torch.cuda.get_device_properties(0)
    assert cuda_compute_capability() == 10 * properties.major + properties.minor
    memory = cuda_memory()
    free, total = torch.cuda.mem_get_info(0)
    assert abs(memory.total - total) < 2048 * MIB, "the driver counts what it keeps for itself"
    assert abs(memory.free - free) < 2048 * MIB
