"""Construction of a transformers model on torch's meta device, where it has shapes and no data.

Code of a checkpoint (`auto_map` in its config.json) is run only if the caller gives its folder.

transformers changes global state while it builds a model, so models are built one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from quire.errors import UnsupportedModelError
from quire.layers.config_values import ConfigValues
from quire_models.transformers_fallback.checkpoint_code import (
    checkpoint_classes,
    code_hint,
    has_model_code,
    one_line,
)

BUILDING = threading.Lock()
EXPERTS_ON_META = "batched_mm"  # the implementation that runs on the meta device
QUIRES_KEYS = frozenset({"quantization_config", "dtype", "torch_dtype"})  # not transformers'
NUM_LAYERS_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
KNOWN_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
BATCH_DEPENDENT_ROPES = frozenset({"dynamic", "longrope"})


def build_on_meta(
    config: Mapping[str, Any], dtype: torch.dtype, code_folder: Path | None
) -> PreTrainedModel:
    """Return the causal language model of a config.json, in eval mode, on the meta device.

    Args:
        config: Content of config.json.
        dtype: Dtype of the parameters.
        code_folder: Folder of the checkpoint if code in it may be run; None: code of a checkpoint
            is never run.

    Raises:
        UnsupportedModelError: transformers has no such model, or the model would give wrong results
            through the fallback.
    """
    model_class, model_config = _resolve(config, code_folder)
    _refuse_by_config(model_class, model_config)
    model_config.use_cache = False
    for name in ("output_router_logits", "output_attentions", "output_hidden_states"):
        if name in model_config.to_dict():
            setattr(model_config, name, False)
    try:
        with torch.device("meta"):
            model: PreTrainedModel = model_class._from_config(
                model_config, attn_implementation="eager", dtype=dtype
            )
    except Exception as error:  # the edge of transformers
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} cannot build it from this config.json: "
            f"{one_line(error)}"
        ) from error
    return model.eval()


def _resolve(
    config: Mapping[str, Any], code_folder: Path | None
) -> tuple[type[PreTrainedModel], PretrainedConfig]:
    """Return the model's class and the config as transformers reads it."""
    architecture, model_type = config["architectures"][0], config.get("model_type")
    if code_folder is not None and has_model_code(config):
        model_class, config_class = checkpoint_classes(config, code_folder)
        return model_class, _read(config_class, config)
    hint = code_hint(config, code_folder)
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} has no model type {model_type!r}{hint}"
        )
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type, ())
    if architecture not in ((known,) if isinstance(known, str) else known):
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} has no causal language model of that name "
            f"for model type {model_type!r}{hint}"
        )
    return getattr(transformers, architecture), _read(CONFIG_MAPPING[model_type], config)


def _read(config_class: type[PretrainedConfig], config: Mapping[str, Any]) -> PretrainedConfig:
    _check_num_layers(config)
    plain = {key: value for key, value in config.items() if key not in QUIRES_KEYS}
    try:
        return config_class.from_dict(plain)
    except Exception as error:  # the edge of transformers
        raise UnsupportedModelError(
            f"transformers {transformers.__version__} does not accept this config.json: "
            f"{one_line(error)}"
        ) from error


def _check_num_layers(config: Mapping[str, Any]) -> None:
    """Check the number of layers, each of which takes memory even without weights.

    Raises:
        UnsupportedModelError: It is no number of layers.
    """
    for key in NUM_LAYERS_KEYS:
        names = {"num_hidden_layers": key}
        values = ConfigValues(config, config["architectures"][0], aliases=names)
        if values.has("num_hidden_layers"):
            values.count("num_hidden_layers")


def _refuse_by_config(model_class: type[PreTrainedModel], config: PretrainedConfig) -> None:
    """Refuse what the config alone shows to be wrong in a batch without transformers' cache.

    Raises:
        UnsupportedModelError: It is.
    """
    values = config.to_dict()
    reason = None
    if values.get("is_encoder_decoder"):
        reason = "it is an encoder-decoder model"
    elif config.get_text_config() is not config:
        reason = "it is a model of several modalities, and the fallback runs text models only"
    elif config.sub_configs:
        names = ", ".join(config.sub_configs)
        reason = f"its config.json has configs inside ({names}), and the fallback reads plain ones"
    elif model_class._is_stateful:
        reason = "it keeps a state in transformers' cache object"
    elif unknown := set(values.get("layer_types") or ()) - KNOWN_LAYER_TYPES:
        reason = f"it has layers of the unknown types {', '.join(sorted(unknown))}"
    elif kinds := BATCH_DEPENDENT_ROPES & set(_rope_kinds(values)):
        reason = (
            f"its rotary embedding is of the kind {', '.join(sorted(kinds))}, which transformers "
            "computes from the largest position in the batch, so that requests would change each "
            "other"
        )
    if reason is not None:
        raise UnsupportedModelError(reason)


def _rope_kinds(values: Mapping[str, Any]) -> list[str]:
    """Return the kinds of all rotary embeddings: one for the model, or one for each layer type."""
    kinds = []
    for key in ("rope_parameters", "rope_scaling"):
        given = values.get(key)
        if isinstance(given, Mapping):
            nested = [each for each in given.values() if isinstance(each, Mapping)]
            kinds += [each.get("rope_type", each.get("type")) for each in (given, *nested)]
    return [kind for kind in kinds if isinstance(kind, str)]
