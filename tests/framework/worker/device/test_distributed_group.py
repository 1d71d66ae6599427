"""Several processes, each with a shard of every layer, give the logits of one."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import parallel_rank
import pytest
import torch
from model_parts import difference
from processes import path_with
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.errors import SettingsError
from quire.layers import SingleDevice
from quire.testing.checkpoints import WrittenCheckpoint, write_checkpoint
from quire.worker.device import distributed_group as parallel
from quire.worker.device.distributed_group import join_group

TOLERANCE = 1e-5
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


def run_ranks(size: int, folder: Path, checkpoints: list[Path]) -> list[dict[str, Tensor]]:
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
                folder / "address",
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
        errors = [rank.communicate(timeout=120)[1] for rank in ranks]
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


@pytest.fixture(scope="module")
def of_two(checkpoints, tmp_path_factory) -> list[dict[str, Tensor]]:
    return run_ranks(2, tmp_path_factory.mktemp("ranks") / "two", checkpoints)


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
def test_four_processes_share_two_kv_heads(checkpoints, alone, tmp_path):
    names = ["llama", "qwen2-one-kv-head", "qwen3"]
    chosen = [folder for folder in checkpoints if folder.name in names]
    ranks = run_ranks(4, tmp_path / "four", chosen)
    for name in names:
        for kind in ("", " with adapter", " with adapter on some"):
            assert difference(ranks[3][name + kind], alone[name + kind]) < TOLERANCE


def test_a_single_rank_needs_no_rendezvous(tmp_path):
    group = join_group(tmp_path / "address", 0, 1, torch.device("cpu"))
    assert isinstance(group, SingleDevice)
    assert not (tmp_path / "address").exists()


def test_on_a_cpu_ranks_listen_on_the_loopback_interface_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # recorded, so that the end of the test removes it
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    seen = []
    monkeypatch.setattr(
        parallel.dist,
        "init_process_group",
        lambda *_, **__: seen.append(os.environ.get("GLOO_SOCKET_IFNAME")),
    )
    group = SimpleNamespace(rank=lambda: 0, size=lambda: 2)
    monkeypatch.setattr(parallel.dist, "new_group", lambda: group)
    join_group(tmp_path / "address", 0, 2, torch.device("cpu"))
    assert seen in (["lo"], ["lo0"])


def test_a_rank_outside_the_group_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="rank 2 is not among the 2"):
        join_group(tmp_path / "address", 2, 2, torch.device("cpu"))
