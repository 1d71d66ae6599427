"""Classes of a model and its config from Python modules that a checkpoint brings.

config.json names them in `auto_map`: `{"AutoModelForCausalLM": "module.Class"}`. Importing a module
runs it, so all that can be refused is refused before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from quire.errors import UnsupportedModelError

CONFIG = "AutoConfig"
MODEL = "AutoModelForCausalLM"
OTHER_MODEL = "--"  # between the id of another model on the hub and the class


def has_model_code(config: Mapping[str, Any]) -> bool:
    """Return whether a config.json names code for a causal language model.

    Raises:
        UnsupportedModelError: Its auto_map is not an object.
    """
    return MODEL in _auto_map(config)


def code_hint(config: Mapping[str, Any], folder: Path | None) -> str:
    """Return the end of a sentence: what the checkpoint's code has to do with a refusal.

    Args:
        config: Content of config.json.
        folder: Folder of the checkpoint if its code may be run.
    """
    if not config.get("auto_map"):
        return ""
    if folder is None:
        return "; the checkpoint has code of its own, which only --trust-remote-code runs"
    names = ", ".join(_auto_map(config))
    return f"; auto_map in its config.json has code for {names}, and none for {MODEL}"


def checkpoint_classes(
    config: Mapping[str, Any], folder: Path
) -> tuple[type[PreTrainedModel], type[PretrainedConfig]]:
    """Return the classes of the model and of its config.

    Args:
        config: Content of config.json, with code for the model.
        folder: Folder of the checkpoint.

    Raises:
        UnsupportedModelError: The code is not in the folder, cannot be imported, or is of another
            kind.
    """
    named = _auto_map(config)
    references = {name: _reference(named[name], name) for name in (MODEL, CONFIG) if name in named}
    model_type = config.get("model_type")
    if CONFIG not in references and model_type not in CONFIG_MAPPING:
        raise UnsupportedModelError(
            f"auto_map in its config.json has no {CONFIG}, and transformers has no model type "
            f"{model_type!r}"
        )
    model_class = _imported(references[MODEL], folder, PreTrainedModel)
    if CONFIG not in references:
        return model_class, CONFIG_MAPPING[model_type]
    return model_class, _imported(references[CONFIG], folder, PretrainedConfig)


def one_line(error: BaseException) -> str:
    """Return an error's type and the first line of its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}"


def _auto_map(config: Mapping[str, Any]) -> Mapping[str, Any]:
    named = config.get("auto_map") or {}
    if isinstance(named, Mapping):
        return named
    raise UnsupportedModelError(
        f"auto_map in its config.json is {named!r}, and must be an object such as "
        f'{{"{MODEL}": "modeling_acme.AcmeForCausalLM"}}'
    )


def _reference(reference: object, name: str) -> str:
    """Return the `module.Class` of a name in auto_map.

    Raises:
        UnsupportedModelError: The module is not one of the checkpoint's folder.
    """
    owner, is_other, _ = str(reference).partition(OTHER_MODEL)
    if is_other:
        raise UnsupportedModelError(
            f"its code is that of another model, {owner}, at a revision that nothing pins; "
            f"copy the Python files of {owner} to a folder with this model, and remove "
            f"'{owner}{OTHER_MODEL}' from auto_map in its config.json"
        )
    module, _, class_name = str(reference).rpartition(".")
    if not (isinstance(reference, str) and module.isidentifier() and class_name.isidentifier()):
        raise UnsupportedModelError(
            f"auto_map in its config.json has {reference!r} for {name}, and must have a class of a "
            "module in the checkpoint's own folder, 'module.Class'"
        )
    return reference


def _imported(reference: str, folder: Path, base: type[Any]) -> type[Any]:
    try:
        found: object = get_class_from_dynamic_module(reference, str(folder))
    except (Exception, SystemExit) as error:  # code of the checkpoint
        raise UnsupportedModelError(
            f"the code in {folder} cannot be imported: {one_line(error)}"
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UnsupportedModelError(
            f"{reference} in {folder} is no subclass of transformers.{base.__name__}"
        )
    return found
