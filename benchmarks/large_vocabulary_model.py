"""A checkpoint of random weights and 152,000 tokens, to measure grammars in an engine.

    python benchmarks/large_vocabulary_model.py FOLDER
    quire bench structured FOLDER --load-format dummy --dtype float32 --input-len 4

The model has 230 million parameters, half of them in its embedding; weights are made when it loads.
"""

import argparse
import json
from pathlib import Path

from vocabulary import large_tokenizer

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 768,
    "intermediate_size": 2304,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "torch_dtype": "bfloat16",
}


def write(folder: Path) -> None:
    """Write a config and a tokenizer."""
    tokenizer = large_tokenizer()
    end = tokenizer.token_to_id("<|end|>")
    folder.mkdir(parents=True, exist_ok=True)
    config = CONFIG | {"vocab_size": tokenizer.get_vocab_size(), "eos_token_id": end}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)
