"""Types of a GGUF file's matrices are counted by parts of the model, merged ones as one."""

from pathlib import Path

from gguf_files import NUMBERS

from quire.compose.gguf.header import GgufTensor
from quire.compose.gguf.tensor_types import TYPES
from quire.compose.gguf.weight_types import weight_types


def types_of(**tensors):
    """Return the counts for tensors of a layer, or of none, with types and shapes."""
    found = {}
    for name, (kind, *shape) in tensors.items():
        whole = name if name in ("token_embd", "output", "output_norm") else f"blk.3.{name}"
        tensor = GgufTensor(whole, Path("m.gguf"), tuple(shape), TYPES[NUMBERS[kind]], 0)
        found[f"{whole}.weight"] = tensor
    return weight_types(found)


def test_parts_are_told_by_names():
    assert types_of(
        token_embd=("Q6_K", 10, 256), output=("Q8_0", 10, 256), output_norm=("F32", 256),
        attn_output=("Q4_K", 256, 256), ffn_down=("Q4_K", 256, 512), ffn_gate_inp=("F32", 4, 256),
        attn_q_norm=("F32", 64),
    ) == {
        "embedding": {"Q6_K": 2560}, "head": {"Q8_0": 2560}, "attention": {"Q4_K": 65536},
        "mlp": {"Q4_K": 131072, "F32": 1024},
    }  # fmt: skip


def test_matrices_that_layers_merge_count_as_one():
    assert types_of(
        attn_q=("Q4_K", 4, 256), attn_k=("Q4_K", 2, 256), attn_v=("Q6_K", 2, 256),
        ffn_gate_exps=("Q4_0", 2, 8, 256), ffn_up_exps=("Q4_0", 2, 8, 256),
        ffn_down_exps=("Q8_0", 2, 4, 256),
    ) == {
        "attention": {"Q4_K Q6_K": 2048}, "mlp": {"Q4_0": 8192, "Q8_0": 2048},
    }  # fmt: skip


def test_matrices_of_different_layers_are_not_merged():
    layers = {
        f"blk.{i}.attn_{side}.weight": GgufTensor(
            "", Path("m.gguf"), (4, 256), TYPES[NUMBERS[kind]], 0
        )
        for i, kind in enumerate(("Q4_K", "Q6_K"))
        for side in "qkv"
    }
    assert weight_types(layers) == {"attention": {"Q4_K": 3072, "Q6_K": 3072}}
