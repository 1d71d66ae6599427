"""Files of every architecture of GGUF that is read give the logits of transformers."""

import numpy as np
import pytest
import torch
from gguf_checkpoints import plain
from gguf_families import CASES, metadata_of, tensors_of, write_case
from gguf_files import Blocks, write_gguf
from model_parts import make_model, random_tokens

from quire.compose.gguf.families import ROWS
from quire.compose.gguf.family import EXPERT_COUNT
from quire.compose.gguf.model_config import config_of
from quire.compose.gguf.split_files import read_files
from quire.testing.model.dense_attention import logits_of
from quire.worker.loading.weight_loading import load_weights
from quire_quantizations.checkpoints.gguf import GGUF

pytest.importorskip("gguf")
Q8_0 = 8


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def loaded(file):
    config = config_of(read_files(file))
    prepared = GGUF() if "quantization_config" in config else None
    model = make_model(config)
    load_weights(model, file, config=config, prepared=prepared)
    return model


def test_every_architecture_has_a_case():
    assert {case.name for case in CASES.values()} | {"qwen2", "qwen3"} == {
        family.name for family in ROWS
    }


def test_families_of_one_model_class_have_the_same_layout():
    families = [family for row in ROWS for family in (row, *row.variants.values())]
    layouts = {}
    for one in families:
        layout = (one.tensors, one.is_paired, one.norm_offset, one.keys.get(EXPERT_COUNT))
        assert layouts.setdefault(one.architecture, layout) == layout


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_those_of_transformers(tmp_path, name):
    file, written = write_case(tmp_path, CASES[name])
    tokens = random_tokens(40)
    torch.testing.assert_close(
        logits_of(loaded(file), tokens), written.logits(tokens), atol=1e-4, rtol=1e-4
    )


def one_by_one(name, stack):
    """The experts as files had them until 2024."""
    stem = name.removesuffix("_exps.weight")
    return {f"{stem}.{i}.weight": matrix for i, matrix in enumerate(stack)}


def gate_and_up_in_one(tensors):
    """The experts with their inputs in one tensor."""
    for name in [name for name in tensors if "gate_exps" in name]:
        up = tensors.pop(name.replace("gate_exps", "up_exps"))
        fused = np.concatenate([tensors.pop(name), up], 1)
        tensors[name.replace("gate_exps", "gate_up_exps")] = fused
    return tensors


def test_experts_may_be_stored_one_by_one_or_fused(tmp_path):
    file, written = write_case(tmp_path, CASES["mixtral"])
    metadata = metadata_of(CASES["mixtral"], written.config)
    tensors = tensors_of(CASES["mixtral"], written)
    old = {}
    for name, tensor in tensors.items():
        old |= one_by_one(name, tensor) if "_exps" in name else {name: tensor}
    tokens = random_tokens(20)
    expected = logits_of(loaded(file), tokens)
    for other in (old, gate_and_up_in_one(tensors)):
        assert len(other) != len(read_files(file).tensors)
        changed = write_gguf(tmp_path / "other.gguf", metadata, other)
        assert torch.equal(logits_of(loaded(changed), tokens), expected)


def rounded(tensor):
    """Scales and codes of blocks of eight bits."""
    groups = tensor.float().numpy().reshape(-1, 32)
    scales = (np.abs(groups).max(1, keepdims=True) / 127).astype(np.float16)
    codes = np.round(groups / np.maximum(scales.astype(np.float32), 1e-8)).astype(np.int8)
    return scales, codes


def blocks(name, tensor):
    """Store matrices in blocks, if their rows can be divided so."""
    if tensor.shape[-1] % 32 or "norm" in name or name.endswith("bias"):
        return plain(name, tensor)
    scales, codes = rounded(tensor)
    data = np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], 1)
    return Blocks(data, Q8_0, tuple(tensor.shape))


def numbers(name, tensor):
    """Store the numbers that blocks stand for."""
    if tensor.shape[-1] % 32 or "norm" in name or name.endswith("bias"):
        return plain(name, tensor)
    scales, codes = rounded(tensor)
    return (scales.astype(np.float32) * codes).reshape(tensor.shape)


@pytest.mark.parametrize(
    "name", ["mixtral", "qwen2moe", "gemma3", "phi3", "gpt-oss", "gemma4 experts", "deepseek3"]
)
def test_blocks_are_the_numbers_that_they_stand_for(tmp_path, name):
    narrow, _ = write_case(tmp_path / "narrow", CASES[name], store=blocks)
    wide, _ = write_case(tmp_path / "wide", CASES[name], store=numbers)
    assert {tensor.type.name for tensor in read_files(narrow).tensors.values()} == {"F32", "Q8_0"}
    tokens = random_tokens(20)
    torch.testing.assert_close(
        logits_of(loaded(narrow), tokens), logits_of(loaded(wide), tokens), atol=1e-5, rtol=1e-5
    )
