"""Ranks on several GPUs of one machine: graphs, NCCL and symmetric memory. It has not run yet."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import rank_process
import torch
from gpu_tests import ON_CPU
from processes import path_with
from safetensors.torch import load_file

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

NUM_GPUS = 0 if ON_CPU else torch.cuda.device_count()
pytestmark = pytest.mark.skipif(NUM_GPUS < 2, reason="it needs two GPUs")

GRIDS = [
    {"tensor_parallel_size": 2},
    {"pipeline_parallel_size": 2},
    {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
    {"tensor_parallel_size": 4},
]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=14, logprobs=3, ignore_eos=True),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(
        tmp_path_factory.mktemp("qwen3"), "Qwen3ForCausalLM", seed=11, head_dim=32
    )


def run(checkpoint, on_device, **options):
    """Tokens, and log probabilities of those that have them."""
    rng = random.Random(3)
    vocab_size = checkpoint.config["vocab_size"]
    prompts = [[rng.randrange(3, vocab_size) for _ in range(length)] for length in (5, 40, 17)]
    sizes = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 8}
    with LLM(str(checkpoint.folder), **sizes, **on_device, **options) as llm:
        found = [output.outputs[0] for output in llm.generate(prompts, PARAMS)]
    logprobs = [next(iter(row.values())).logprob for each in found for row in each.logprobs or ()]
    return [each.token_ids for each in found], logprobs


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize(
    "mode",
    [{"enforce_eager": True}, {"max_cuda_graph_size": 8}, {"symmetric_memory": False}],
    ids=["eager", "graphs", "nccl"],
)
def test_ranks_generate_what_one_gpu_does(checkpoint, on_device, grid, mode):
    """`max_cuda_graph_size` makes a capture that fails an error."""
    size = grid.get("tensor_parallel_size", 1) * grid.get("pipeline_parallel_size", 1)
    if size > NUM_GPUS:
        pytest.skip(f"it needs {size} GPUs")
    tokens, logprobs = run(checkpoint, on_device)
    found, found_logprobs = run(checkpoint, on_device, **grid, **mode)
    assert found == tokens
    assert found_logprobs == pytest.approx(logprobs, abs=1e-4)


ALL_REDUCE = """
import sys
import torch
from rank_process import FolderExchange
from safetensors.torch import save_file
from quire.worker.device.distributed_group import DistributedGroup
from quire.worker.device.group_place import GroupPlace
from quire.worker.device.symmetric_memory import SymmetricMemory, join_symmetric_memory

folder, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
place = GroupPlace(rank=rank, ranks=range(size), ranks_on_node=size, timeout_s=60.0)
exchange = FolderExchange(folder)
group = DistributedGroup.join(exchange, "group", place, device, "127.0.0.1")
memory = join_symmetric_memory(
    group, device, None, lambda: SymmetricMemory.connect(exchange, "group", place, device)
)
assert memory is not None
found = {}
for dtype in (torch.float32, torch.bfloat16):
    for num_elements in (8, 4096, 2**17, 2**18, 2**20):
        generator = torch.Generator().manual_seed(rank)
        given = torch.randn(num_elements, generator=generator).to(device, dtype)
        for multicast in sorted({False, memory.has_multicast}):
            memory.has_multicast = multicast
            kernel = memory.kernel_for(given)
            assert kernel is not None
            name = f"{kernel} {dtype} {num_elements}"
            found[name] = memory.all_reduce(given.clone(), kernel)
            graph, captured = torch.cuda.CUDAGraph(), given.clone()
            with torch.cuda.graph(graph):
                total = memory.all_reduce(captured, kernel)
            for _ in range(3):
                captured.copy_(given)
                graph.replay()
            found[f"{name} replayed"] = total.clone()
            del graph
        found[f"nccl {dtype} {num_elements}"] = group.all_reduce(given.clone())
torch.cuda.synchronize()
save_file({name: each.cpu() for name, each in found.items()}, f"{folder}/{rank}.safetensors")
group.use_symmetric_memory(memory)
group.close()
"""


@pytest.mark.parametrize("size", [size for size in (2, 3, 4, 8) if size <= NUM_GPUS])
def test_sums_in_symmetric_memory_have_the_same_bits_on_all_ranks(tmp_path, size):
    """And are near those of NCCL; a replayed graph has the same bits as well."""
    environment = {**os.environ, "PYTHONPATH": path_with(Path(rank_process.__file__).parent)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ALL_REDUCE, tmp_path, str(rank), str(size)], env=environment
        )
        for rank in range(size)
    ]
    try:
        assert [rank.wait(280) for rank in ranks] == [0] * size
    finally:
        for rank in ranks:
            rank.kill()
    first, *others = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(size))
    for name, total in first.items():
        assert all(torch.equal(other[name], total) for other in others), name
        if name.endswith(" replayed"):
            if not name.startswith("multimem"):
                assert torch.equal(total, first[name.removesuffix(" replayed")]), name
        else:
            reference = first[f"nccl {name.split(' ', 1)[1]}"]
            torch.testing.assert_close(total, reference, rtol=2e-2, atol=2e-2, msg=name)
