"""Tiny checkpoints of models with media towers, written by transformers with random weights."""

from dataclasses import replace
from pathlib import Path

import torch
from media_cases import VISION, MediaCase

from quire.testing.model import TINY_SIZES
from quire.testing.model.transformers_checkpoint import TransformersCheckpoint, write_model


def write_media_model(folder: Path, case: MediaCase, seed: int = 0) -> TransformersCheckpoint:
    """Write a checkpoint of a model with media towers, in the names that its publishers use."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    text = {"model_type": case.text_type, **TINY_SIZES, **case.text}
    tower = AutoConfig.for_model(case.model_type).vision_config
    vision_type = f"{case.model_type}_vision" if tower is None else tower.model_type
    config = AutoConfig.for_model(
        case.model_type,
        text_config=text,
        vision_config={"model_type": vision_type, **VISION, **case.vision},
        **case.outer,
    )
    torch.manual_seed(seed)
    model = AutoModelForImageTextToText.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    written = write_model(folder, model, seed=seed)
    # Llama 4's head is its text model's; in transformers 5.24 the whole model cannot answer
    inner = getattr(model, "language_model", None)
    reference = inner if hasattr(inner, "lm_head") else model
    return replace(written, theirs=reference, logit_factor=case.logit_factor)
