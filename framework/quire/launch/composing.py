"""Compose from settings alone, so that any process that is given them decides the same."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from quire.compose.checkpoint import Checkpoint, find_checkpoint
from quire.compose.choosing import ASKED_FOR
from quire.compose.compose import compose, corrected
from quire.compose.composition import Composition
from quire.compose.kernel_choice import NATIVE_DTYPE
from quire.config import Settings
from quire.frontend.chat.chat_template import ChatTemplate
from quire.frontend.text.tokenizer import Tokenizer
from quire.messages import LoadFailures
from quire.native.waiting import wait_asleep
from quire.plugins.loading import Plugins, load_plugins
from quire.plugins.registry import Entry

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Composed:
    """What was chosen, and what reads text; nothing is running yet."""

    settings: Settings  # with the sizes that the device decides
    plugins: Plugins
    composition: Composition
    tokenizer: Tokenizer
    chat_template: ChatTemplate

    def corrected(self, failures: LoadFailures) -> Self:
        """Return the same with what took the place of parts that failed while they loaded."""
        if failures == LoadFailures():
            return self
        registries = self.plugins.registries
        composition = corrected(self.composition, self.settings, registries, failures)
        return replace(self, composition=composition)


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
    if composition.kernels == "native":
        wait_asleep()  # torch has not come yet
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
        "kernels: %s (%s); KV cache in %s; CUDA graphs: %s",
        composition.kernels,
        composition.kernels_why,
        composition.kv_dtype,
        composition.graphs_why,
    )
    if composition.device == "cpu":
        logger.info("decode steps: %s", composition.decode_steps)
    logger.info("weights of linear layers: %s", composition.weights)
    missed = _missed_kernels(composition)
    if missed is not None:
        logger.warning("torch's operators run, for compiled CPU kernels cannot: %s", missed)
    for choice in composition.choices:
        logger.info(
            "%s: %s, from %s (%s)", choice.role, choice.name, choice.entry.source, choice.why
        )
    for entry in composition.passed_over:
        _warn_of_others(entry)


def _warn_of_others(entry: Entry) -> None:
    """Say that plugins offer a name of quire's own, which serves all the same."""
    logger.warning(
        "%s %r is also offered by %s; quire's own is used, and %s would use another",
        entry.kind.title,
        entry.name,
        " and ".join(map(str, entry.passed_over)),
        " or ".join(map(entry.preference, entry.passed_over)),
    )


def _missed_kernels(composition: Composition) -> str | None:
    """Return why compiled CPU kernels cannot run that nobody has decided against; else None.

    Without them the compute type may be another one, which would keep them out as well.
    """
    machine = composition.machine
    is_type_chosen = composition.dtype_why == ASKED_FOR and composition.dtype != NATIVE_DTYPE
    is_chosen = composition.kernels_why == ASKED_FOR or is_type_chosen
    if composition.device != "cpu" or composition.kernels != "torch" or is_chosen:
        return None
    has_better = composition.dtype == "bfloat16" and machine.cpu_has_matrix_bf16
    return None if has_better else machine.native_unavailable_reason


def _tokenizer_folder(settings: Settings, plugins: Plugins, checkpoint: Checkpoint) -> Path:
    if settings.model.tokenizer is None:
        return checkpoint.folder
    other = Settings.from_options({"model": settings.model.tokenizer}).model
    return find_checkpoint(other, plugins.registries.checkpoints, with_weights=False).folder
