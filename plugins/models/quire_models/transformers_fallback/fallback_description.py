"""Description of a model that runs through transformers, without torch in this process.

transformers' configs load torch, and only the model itself shows how its layers attend. So a child
process surveys the model, unless this process has torch already.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from quire.errors import UnsupportedModelError
from quire.interfaces.kv_cache import KVLayer
from quire.interfaces.model import ModelDescription
from quire.layers.config_values import ConfigValues
from quire_models.transformers_fallback.attention_names import attention_name

SURVEY = "quire_models.transformers_fallback.survey"
TIMEOUT_S = 300
SIZE_PARAMS = {"sliding_window": "window", "chunked_local_attention": "chunk"}


def describe_by_transformers(
    config: Mapping[str, Any], code_folder: Path | None = None
) -> ModelDescription:
    """Return the model description that the engine plans with.

    Args:
        config: Content of config.json.
        code_folder: Folder of the checkpoint if code in it may be run; None: it may not.

    Raises:
        UnsupportedModelError: transformers has no such model, or its results would be wrong here.
    """
    if not isinstance(config.get("model_type"), str) and not config.get("auto_map"):
        raise UnsupportedModelError("config.json has no model_type, by which transformers knows it")
    request = json.dumps({"config": config, "code_folder": code_folder and str(code_folder)})
    found = json.loads(_surveyed(request))
    if "refusal" in found:
        raise UnsupportedModelError(found["refusal"])
    return _description(config, found, code_folder)


@lru_cache(maxsize=16)
def _surveyed(request: str) -> str:
    """Return the answer to a survey request, as JSON."""
    if "torch" in sys.modules:
        answer: str = import_module(SURVEY).answer(request)
        return answer
    command = [sys.executable, "-m", SURVEY]
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnsupportedModelError(
            f"the process that surveys the model did not end within {TIMEOUT_S} seconds"
        ) from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise UnsupportedModelError(f"the process that surveys the model failed: {last[0]}")
    return done.stdout.rpartition("\n")[2]


def _description(
    config: Mapping[str, Any], found: Mapping[str, Any], code_folder: Path | None
) -> ModelDescription:
    architecture, calls = config["architectures"][0], found["calls"]
    values = ConfigValues(config, architecture)
    quantization = values.mapping("quantization_config")
    method = ConfigValues(quantization, architecture, prefix="quantization_config.")
    return ModelDescription(
        architecture=architecture,
        config=config,
        vocab_size=found["vocab_size"],
        hidden_size=found["hidden_size"],
        num_layers=len(calls),
        num_heads=max(call["num_heads"] for call in calls),
        max_model_len=found["max_model_len"],
        num_params=found["num_params"],
        checkpoint_dtype=values.text("dtype", values.text("torch_dtype", "float32")),
        kv_layers=tuple(_kv_layer(index, call) for index, call in enumerate(calls)),
        logit_soft_cap=calls[0]["soft_cap"],
        quantization=method.text("quant_method") if quantization else None,
        has_tied_head=found["has_tied_head"],
        sharded_sizes=found["sharded_sizes"],
        num_experts=found["num_experts"],
        expert_sizes=found["expert_sizes"],
        code_folder=code_folder,
    )


def _kv_layer(index: int, call: Mapping[str, Any]) -> KVLayer:
    mask = call["mask"]
    size = SIZE_PARAMS.get(mask["name"])
    return KVLayer(
        name=attention_name(call["path"]),
        spec=mask["name"],
        num_kv_heads=call["num_kv_heads"],
        head_dim=max(call["key_dim"], call["value_dim"]),
        params=() if size is None else ((size, mask["size"]),),
        has_sinks=call["sinks"] is not None,
        layer_index=index,
    )
