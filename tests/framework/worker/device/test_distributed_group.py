"""Collectives over Gloo; several processes, each with a shard of every layer, give one's logits."""

import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import parallel_rank
import pytest
import torch
from cpp_compilers import NEEDS_COMPILER
from processes import path_with
from rank_process import RankProcesses, tensor
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.layers import SingleDevice
from quire.testing.checkpoints import WrittenCheckpoint, write_checkpoint
from quire.testing.model.dense_attention import difference
from quire.worker.device.distributed_group import DistributedGroup

TOLERANCE = 1e-5
KEYS = (f"group-{number}" for number in count())
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
    "llama-odd-vocabulary": ("LlamaForCausalLM", {"vocab_size": 323, "tie_word_embeddings": True}),
    "llama-odd-head": ("LlamaForCausalLM", {"vocab_size": 321}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen2-one-kv-head": ("Qwen2ForCausalLM", {"num_key_value_heads": 1}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 32}),
    "qwen3-one-kv-head-tied": (
        "Qwen3ForCausalLM",
        {"num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "gemma3": ("Gemma3ForCausalLM", {"sliding_window": 9}),
}


def write_adapter(written: WrittenCheckpoint) -> None:
    """A random adapter on every matrix of the layers but one."""
    generator = torch.Generator().manual_seed(5)
    tensors = {}
    for name, weight in written.weights.items():
        if "_proj.weight" not in name or name.endswith("1.self_attn.v_proj.weight"):
            continue
        module = f"base_model.model.{name.removesuffix('.weight')}"
        rows, columns = weight.shape
        tensors[f"{module}.lora_A.weight"] = torch.randn(3, columns, generator=generator) * 0.1
        tensors[f"{module}.lora_B.weight"] = torch.randn(rows, 3, generator=generator) * 0.1
    folder = written.folder / "adapter"
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 6}')


def run_ranks(
    kind: str, size: int, folder: Path, checkpoints: list[Path]
) -> list[dict[str, Tensor]]:
    """Run the ranks in processes, and return what each computed."""
    folder.mkdir()
    script = parallel_rank.__file__
    path = path_with(Path(script).parent)
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    outputs = [folder / f"{rank}.safetensors" for rank in range(size)]
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                script,
                kind,
                folder,
                str(rank),
                str(size),
                output,
                *checkpoints,
            ],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, output in enumerate(outputs)
    ]
    try:
        errors = [rank.communicate(timeout=280)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(errors)
    return [load_file(output) for output in outputs]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, (architecture, config) in CASES.items():
        write_adapter(write_checkpoint(folder / name, architecture, **config))
    return [folder / name for name in CASES]


@pytest.fixture(scope="module")
def alone(checkpoints) -> dict[str, Tensor]:
    torch.set_num_threads(1)
    logits = {}
    for folder in checkpoints:
        logits.update(parallel_rank.compute(folder, SingleDevice()))
    return logits


@pytest.fixture(scope="module", params=["gloo", pytest.param("shared", marks=NEEDS_COMPILER)])
def of_two(request, checkpoints, tmp_path_factory) -> list[dict[str, Tensor]]:
    return run_ranks(request.param, 2, tmp_path_factory.mktemp("ranks") / "two", checkpoints)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["", " with adapter", " with adapter on some"])
def test_two_processes_give_the_logits_of_one(alone, of_two, case, kind):
    expected = alone[case + kind]
    assert difference(of_two[0][case + kind], expected) < TOLERANCE
    torch.testing.assert_close(of_two[1][case + kind], of_two[0][case + kind], rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES)
def test_the_adapter_changes_the_logits(alone, case):
    assert difference(alone[f"{case} with adapter"], alone[case]) > 0.01
    assert difference(alone[f"{case} with adapter on some"], alone[case]) > 0.01


@pytest.mark.parametrize("case", CASES)
def test_both_processes_generate_the_same_dummy_norms(of_two, case):
    first, second = (rank[f"{case} dummy norm"] for rank in of_two)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert first.std() > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("group", ["gloo", pytest.param("shared", marks=NEEDS_COMPILER)])
def test_four_processes_share_two_kv_heads(checkpoints, alone, tmp_path, group):
    names = ["llama", "qwen2-one-kv-head", "qwen3"]
    chosen = [folder for folder in checkpoints if folder.name in names]
    ranks = run_ranks(group, 4, tmp_path / "four", chosen)
    for name in names:
        for kind in ("", " with adapter", " with adapter on some"):
            assert difference(ranks[3][name + kind], alone[name + kind]) < TOLERANCE


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    with RankProcesses(4, tmp_path_factory.mktemp("gloo")) as ranks:
        yield ranks


@pytest.fixture
def two(four):
    four.join("gloo", next(KEYS), size=2)
    yield four
    four.revive()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_ranks_have_the_same_bits_of_a_sum(four, size):
    four.join("gloo", next(KEYS), size=size)
    for seed, shape in enumerate([(1,), (2,), (3,), (5, 3), (64, 40), (100_001,)]):
        for dtype in ("float32", "bfloat16", "float16"):
            first, *others = four.values("all_reduce", shape, dtype, seed)
            assert others == [first] * (size - 1)
            kind = getattr(torch, dtype)
            total = sum(tensor(shape, dtype, seed + rank).double() for rank in range(size))
            sums = torch.frombuffer(bytearray(first), dtype=kind).view(shape)
            torch.testing.assert_close(sums, total.to(kind), rtol=4e-3, atol=1e-2)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_tensors_are_joined_as_in_one_process(four, size, dtype):
    four.join("gloo", next(KEYS), size=size)
    for shape in [(7,), (4, 5), (2, 3, 4)]:
        for dim in (0, -1, len(shape) - 1):
            parts = [tensor(shape, dtype, rank) for rank in range(size)]
            joined = torch.cat(parts, dim).contiguous().view(torch.uint8).numpy()
            assert four.values("all_gather", shape, dtype, 0, dim) == [bytes(joined)] * size


def test_other_dtypes_are_not_added_up(two):
    answer, _ = two.all("all_reduce", (4,), "int64", 0)
    assert "adds up torch.float32, torch.bfloat16, torch.float16, not torch.int64" in answer.error


def test_ranks_listen_on_one_address(two):
    assert two.values("listeners") == [["0100007F"]] * 2
    two.values("close")
    assert two.values("listeners") == [[]] * 2


def test_a_rank_that_does_not_come_in_time_is_an_error_for_the_others(two):
    two.values("all_reduce", (4,), "float32", 0)
    two.values("set_timeout", 0.5)
    for _ in range(2):
        answer = two.answer(0, two.begin(0, "all_reduce", (4,), "float32", 0))
        assert answer.code == "collective_failed"
        assert "collective 2 of ranks 0, 1 failed on rank 0: " in answer.error
        assert "Timed out waiting 500ms" in answer.error


@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_rank_that_is_gone_is_noticed_at_once(two, end):
    begun = two.begin(0, "all_reduce", (4,), "float32", 0)
    if end == "kill":
        two.signal(1, signal.SIGKILL)
    else:
        assert two.answer(1, two.begin(1, "close")).error == ""
    answer = two.answer(0, begun)
    assert answer.code == "collective_failed"
    assert "closed by peer" in answer.error or "reset by peer" in answer.error
    assert answer.seconds < 30


def test_a_rank_that_aborts_frees_the_others_and_all_can_go_on(two):
    begun = two.begin(1, "all_reduce", (4,), "float32", 0)
    assert two.answer(0, two.begin(0, "abort")).error == ""
    answer = two.answer(1, begun)
    assert answer.code == "collective_failed"
    assert answer.seconds < 30
    answer = two.answer(0, two.begin(0, "all_reduce", (4,), "float32", 0))
    assert "the group was aborted on this rank" in answer.error
    two.values("reset", 2)
    first, second = two.values("all_reduce", (4,), "float32", 0)
    assert first == second


def test_its_collectives_are_in_no_trace_so_steps_with_them_are_not_traced(two):
    """A replay would return the sums of the traced step."""
    two.values("trace")
    assert two.values("replay", [1, 2, 3, 4, 5]) == two.values("replay", [0] * 5)
    assert not DistributedGroup.is_traceable


def test_a_closed_group_is_not_used_again(two):
    assert two.answer(1, two.begin(1, "close")).error == ""
    answer = two.answer(1, two.begin(1, "all_reduce", (4,), "float32", 0))
    assert "the group is closed" in answer.error
