"""A Qwen3 checkpoint with bfloat16 weights as GGUF files, so that llama.cpp has the same weights.

    PYTHON_WITH_LLAMA_CPP write_gguf.py FOLDER BF16 Q8_0 Q4_0 F32

BF16.gguf is written here, with the elements of `model.safetensors` unchanged; the others are made
from it by llama.cpp's own quantizer, as its users make them. There is no tokenizer in them: prompts
and completions are token ids.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

FILE_TYPES = {"F32": 0, "Q4_0": 2, "Q8_0": 7}  # enum llama_ftype
OUTSIDE_LAYERS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IN_A_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def main() -> None:
    """Write those files that are not there yet."""
    folder, kinds = Path(sys.argv[1]), sys.argv[2:]
    source = folder / "BF16.gguf"
    if not source.exists():
        write_bf16(folder, source)
    for kind in kinds:
        target = folder / f"{kind}.gguf"
        if not target.exists():
            quantize(source, target, FILE_TYPES[kind])


def write_bf16(folder: Path, target: Path) -> None:
    """Write every matrix as it is, and every vector as float32, as llama.cpp wants them."""
    config = json.loads((folder / "config.json").read_text())
    partial = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "qwen3")
    add_sizes(writer, config)
    writer.add_tokenizer_model("none")
    for name, codes in bfloat16_tensors(folder / "model.safetensors"):
        if codes.ndim == 1:
            writer.add_tensor(gguf_name(name), widened(codes))
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(gguf_name(name), codes.view(np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(target)


def add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Write what llama.cpp reads of a config.json."""
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])


def bfloat16_tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each tensor of a safetensors file as the 16-bit codes that lie there."""
    data = np.memmap(path, np.uint8, "r")
    header_size = int(data[:8].view(np.uint64)[0])
    header = json.loads(bytes(data[8 : 8 + header_size]))
    header.pop("__metadata__", None)
    for name, tensor in header.items():
        if tensor["dtype"] != "BF16":
            raise SystemExit(f"{name} is {tensor['dtype']}; bfloat16 weights are needed")
        start, end = (8 + header_size + offset for offset in tensor["data_offsets"])
        yield name, np.array(data[start:end]).view(np.uint16).reshape(tensor["shape"])


def widened(codes: np.ndarray) -> np.ndarray:
    """Return bfloat16 codes as float32 numbers."""
    return (codes.astype(np.uint32) << 16).view(np.float32)


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a tensor of the checkpoint."""
    if name in OUTSIDE_LAYERS:
        return OUTSIDE_LAYERS[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{IN_A_LAYER[part]}.weight"


def quantize(source: Path, target: Path, file_type: int) -> None:
    """Let llama.cpp's quantizer make the other kinds of weights."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    partial = target.with_suffix(".partial")
    failed = llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), params)
    if failed:
        raise SystemExit(f"llama.cpp's quantizer failed for {target.name} with {failed}")
    partial.rename(target)


if __name__ == "__main__":
    main()
