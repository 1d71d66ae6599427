"""Compose from settings alone, so that any process that is given them decides the same."""

import logging
from dataclasses import dataclass
from pathlib import Path

from quire.checkpoint import Checkpoint, find_checkpoint
from quire.compose import compose
from quire.composition import Composition
from quire.config import Settings
from quire.frontend.chat_template import ChatTemplate
from quire.frontend.tokenizer import Tokenizer
from quire.plugins import Plugins, load_plugins

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Composed:
    """What was chosen, and what reads text; nothing is running yet."""

    settings: Settings  # with the sizes that the device decides
    plugins: Plugins
    composition: Composition
    tokenizer: Tokenizer
    chat_template: ChatTemplate


def plan_composition(settings: Settings) -> Composition:
    """Choose every part of an engine, without starting it.

    Raises:
        QuireError: A part cannot be chosen; the message says which and what would help.
    """
    return compose_engine(settings, load_plugins(settings.plugins), with_weights=False).composition


def compose_engine(settings: Settings, plugins: Plugins, with_weights: bool = True) -> Composed:
    """Choose every part, and load what reads text.

    Args:
        settings: What the user asked for.
        plugins: What is installed.
        with_weights: Fetch the weights of a model that lies on the hub.

    Raises:
        QuireError: A part cannot be chosen; the message says which and what would help.
    """
    with_weights = with_weights and settings.model.load_format != "dummy"
    checkpoint = find_checkpoint(settings.model, plugins.registries.checkpoints, with_weights)
    tokenizer = Tokenizer.load(_tokenizer_folder(settings, plugins, checkpoint))
    template = ChatTemplate.load(
        checkpoint.folder, settings.model.chat_template, tokenizer.special_tokens
    )
    composition = compose(settings, plugins, checkpoint, template.source)
    settings = settings.for_device(composition.device)
    return Composed(settings, plugins, composition, tokenizer, template)


def log_composition(composition: Composition) -> None:
    """Say in the log what was chosen, from where and why."""
    logger.info(
        "%s on %s in %s: %s",
        composition.checkpoint.name,
        composition.device,
        composition.dtype,
        composition.dtype_why,
    )
    logger.info(
        "kernels: %s; KV cache in %s; CUDA graphs: %s",
        composition.kernels,
        composition.kv_dtype,
        composition.graphs_why,
    )
    for choice in composition.choices:
        logger.info(
            "%s: %s, from %s (%s)", choice.role, choice.name, choice.entry.source, choice.why
        )


def _tokenizer_folder(settings: Settings, plugins: Plugins, checkpoint: Checkpoint) -> Path:
    if settings.model.tokenizer is None:
        return checkpoint.folder
    other = Settings.from_options({"model": settings.model.tokenizer}).model
    return find_checkpoint(other, plugins.registries.checkpoints, with_weights=False).folder
