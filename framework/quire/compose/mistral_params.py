"""Mistral's `params.json`, read as the config.json that the same model has on Hugging Face."""

from collections.abc import Container, Mapping
from typing import Any

from quire.errors import UnsupportedModelError

PARAMS = "params.json"
DEFAULT_MAX_LEN = 32768  # of early checkpoints, which do not name it
RENAMED = {
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size",
    "norm_eps": "rms_norm_eps",
    "rope_theta": "rope_theta",
    "sliding_window": "sliding_window",
    "tied_embeddings": "tie_word_embeddings",
}
MAX_LENS = ("max_position_embeddings", "max_seq_len")
YARN = {"factor": "factor", "original_max_position_embeddings": "original_max_position_embeddings",
        "beta": "beta_fast", "alpha": "beta_slow"}  # fmt: skip
NO_EFFECT = frozenset({"model_type", "architectures", "use_cache", "transformers_version"})


def config_from_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a text model.

    Raises:
        UnsupportedModelError: A parameter is missing, or has no counterpart.
    """
    used = {*RENAMED, *MAX_LENS, *NO_EFFECT, "moe", "yarn"}
    unknown = [key for key, value in params.items() if key not in used and value]
    if unknown:
        raise UnsupportedModelError(
            f"{PARAMS} sets {', '.join(unknown)}, which quire does not read from it; use the "
            "model's files in the layout of Hugging Face, with config.json"
        )
    missing = [key for key in ("dim", "n_layers", "n_heads", "hidden_dim", "vocab_size")
               if key not in params]  # fmt: skip
    if missing:
        raise UnsupportedModelError(f"{PARAMS} lacks {', '.join(missing)}")
    lengths = (params[key] for key in MAX_LENS if params.get(key))
    return {
        "architectures": ["MixtralForCausalLM" if params.get("moe") else "MistralForCausalLM"],
        "model_type": "mixtral" if params.get("moe") else "mistral",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "max_position_embeddings": next(lengths, DEFAULT_MAX_LEN),
        **{RENAMED[key]: value for key, value in params.items() if key in RENAMED},
        **_experts(params),
        **_scaled_rope(params),
    }


def _experts(params: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {"num_experts": "num_local_experts", "num_experts_per_tok": "num_experts_per_tok"}
    return {renamed[key]: value for key, value in _object(params, "moe", renamed).items()}


def _scaled_rope(params: Mapping[str, Any]) -> dict[str, Any]:
    yarn = _object(params, "yarn", (*YARN, "apply_scale"))
    if not yarn:
        return {}
    scaling = {YARN[key]: value for key, value in yarn.items() if key in YARN}
    if not yarn.get("apply_scale", True):
        scaling["attention_factor"] = 1.0
    return {"rope_scaling": {"rope_type": "yarn", **scaling}}


def _object(params: Mapping[str, Any], key: str, known: Container[str]) -> Mapping[str, Any]:
    """Return an object that has only known parameters; an empty one if it is off."""
    value = params.get(key) or {}
    if not isinstance(value, Mapping):
        raise UnsupportedModelError(f"{key} in {PARAMS} must be an object, got {value!r}")
    if unknown := [f"{key}.{name}" for name in value if name not in known]:
        raise UnsupportedModelError(
            f"{PARAMS} sets {', '.join(unknown)}, which quire does not read"
        )
    return value
