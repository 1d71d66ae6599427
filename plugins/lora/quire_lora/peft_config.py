"""Parsing and checks of adapter_config.json. Unknown options are refused by name.

An option that is ignored silently gives wrong completions that look right. So an adapter with an
option of a newer peft is refused until the option is added here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import AdapterError

CONFIG = "adapter_config.json"
MAX_CONFIG_BYTES = 2**20
MAX_PATTERN_QUANTIFIERS = 3
MAX_NUMBER = 1e9  # far above any scale in use

USED = frozenset({"peft_type", "lora_alpha", "use_rslora", "alpha_pattern", "init_lora_weights"})
# Options about the training or the modules of the adapter; the tensors have the same information.
HARMLESS = frozenset({
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
    "inference_mode", "r", "rank_pattern", "target_modules", "exclude_modules", "lora_dropout",
    "layers_to_transform", "layers_pattern", "megatron_config", "megatron_core", "loftq_config",
    "eva_config", "corda_config", "lora_ga_config", "qalora_group_size", "runtime_config",
    "ensure_weight_tying",
    "fan_in_fan_out",  # of the base weight; A and B have the same orientation with it
})  # fmt: skip
# Other values (pissa, olora, loftq, ...) change the base weights, which the adapter then requires.
PLAIN_INITS = (True, False, None, "gaussian", "orthogonal", "eva")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """Options of the config that affect the adapter's output.

    Attributes:
        base_model: Name of the base model, if the config has one.
        alpha: Numerator of the scale.
        alpha_pattern: Numerators for modules whose name ends in a match of the regular expression.
        use_rslora: Whether to divide by the square root of the rank (Kalajdzievski, 2023).
    """

    base_model: str | None
    alpha: float
    alpha_pattern: Mapping[str, float]
    use_rslora: bool

    def scale(self, module: str, rank: int) -> float:
        """Return the factor on `B A` for a module of the given rank."""
        matches = (
            alpha
            for pattern, alpha in self.alpha_pattern.items()
            if re.match(rf"(.*\.)?({pattern})$", module)
        )
        alpha = next(matches, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def read_config(folder: Path) -> PeftConfig:
    """Read and check `adapter_config.json`.

    Raises:
        AdapterError: It is missing or broken, or has an option that quire does not support.
    """
    config = _read_json(folder / CONFIG)
    _check_options(folder, config)
    base = config.get("base_model_name_or_path")
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict):
        raise AdapterError(f"{folder / CONFIG}: alpha_pattern must be an object")
    return PeftConfig(
        base_model=base if isinstance(base, str) else None,
        alpha=_number(folder, "lora_alpha", config.get("lora_alpha", 8)),
        alpha_pattern={
            _checked_pattern(folder, pattern): _number(folder, f"alpha_pattern[{pattern!r}]", alpha)
            for pattern, alpha in patterns.items()
        },
        use_rslora=config.get("use_rslora") is True,
    )


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise AdapterError(f"{str(file.parent)!r} is not an adapter folder: it has no {CONFIG}")
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise AdapterError(f"{file} is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        config = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise AdapterError(f"{file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise AdapterError(f"{file} is not a JSON object")
    return config


def _check_options(folder: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise AdapterError(f"{folder}: peft_type {kind!r} is not supported; it must be LORA")
    init = config.get("init_lora_weights", True)
    if init not in PLAIN_INITS:
        raise AdapterError(
            f"{folder}: init_lora_weights {init!r} changes the base model too; convert the adapter "
            "with peft's path_initial_model_for_weight_conversion"
        )
    switched_on = [
        name
        for name, value in config.items()
        if name not in USED and name not in HARMLESS and value not in (None, False, "none", [], {})
    ]
    if switched_on:
        raise AdapterError(f"{folder}: {', '.join(switched_on)} is not supported by quire")


def _number(folder: Path, what: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= MAX_NUMBER:  # type: ignore[arg-type]
        raise AdapterError(f"{folder / CONFIG}: {what} must be a number, got {value!r:.100}")
    return float(value)  # type: ignore[arg-type]


def _checked_pattern(folder: Path, pattern: str) -> str:
    """Check that a pattern compiles and cannot take long to match: the file is not trusted."""
    quantifiers = len(re.findall(r"[*+?{]", pattern))
    if quantifiers > MAX_PATTERN_QUANTIFIERS or re.search(r"\)[*+?{]", pattern):
        raise AdapterError(
            f"{folder / CONFIG}: alpha_pattern {pattern!r} is too complex: it may have at most "
            f"{MAX_PATTERN_QUANTIFIERS} quantifiers, and none after a group"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise AdapterError(
            f"{folder / CONFIG}: alpha_pattern {pattern!r} is not a regular expression: {error}"
        ) from error
    return pattern
