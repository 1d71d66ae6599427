"""Composition from settings alone, so that every process with the same settings chooses the same.

`compose_engine` also loads the tokenizer and the chat template; nothing is running after it.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from quire.compose.checkpoint import Checkpoint, find_checkpoint
from quire.compose.choices.choosing import ASKED_FOR
from quire.compose.choices.grid_choice import cores_warning
from quire.compose.choices.probes import KnownProbes, cause_of
from quire.compose.compose import compose
from quire.compose.composition import Choice, Composition, Rejection
from quire.config import Settings
from quire.frontend.chat.templates.chat_template import ChatTemplate
from quire.frontend.text.checkpoint_file import read_json_object
from quire.frontend.text.tokenizer import Tokenizer
from quire.launch.read_ahead import read_ahead
from quire.native.waiting import wait_asleep
from quire.plugins.loading import Plugins, load_plugins
from quire.plugins.registry import Entry

NO_CPU_KERNELS = "compiled CPU kernels are not available, torch operators are used instead: %s"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Composed:
    """Composition of an engine with its tokenizer and chat template; nothing is running yet."""

    settings: Settings  # with the device's defaults
    plugins: Plugins
    composition: Composition
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    probed: Mapping[str, str | None]  # results of the probes that have run


def plan_composition(settings: Settings) -> Composition:
    """Choose every part of an engine, without starting it and without its probes.

    Raises:
        QuireError: A part cannot be chosen; the message says which and what would help.
    """
    return compose_engine(settings, load_plugins(settings.plugins), is_plan=True).composition


def compose_engine(
    settings: Settings,
    plugins: Plugins,
    *,
    is_plan: bool = False,
    probed: Mapping[str, str | None] | None = None,
) -> Composed:
    """Choose every part, and load the tokenizer and the chat template.

    Args:
        settings: Settings as given by the user.
        plugins: Installed plugins.
        probed: Results of the probes of a process that runs the engine of this one; None: the
            engine runs here, or is started from here.
        is_plan: Whether nothing will be started: then no weights of a model on the hub are
            downloaded, no kernels are compiled, and every chosen part is expected to run.

    Raises:
        QuireError: A part cannot be chosen; the message says which and what would help.
    """
    is_front_end = probed is not None
    with_weights = not (is_plan or is_front_end) and settings.model.load_format != "dummy"
    checkpoint = find_checkpoint(settings.model, plugins.registries.checkpoints, with_weights)
    if with_weights:
        read_ahead(checkpoint.folder)
    tokenizer, template = load_text(settings, plugins, checkpoint)
    probe = KnownProbes(probed)
    composition = compose(
        settings,
        plugins,
        checkpoint,
        template.source,
        probe=None if is_plan else probe,
        tokenizer_config=read_json_object(checkpoint.folder / "tokenizer_config.json"),
    )
    if composition.kernels.value == "native" and not is_front_end:
        wait_asleep()  # has to be set before torch is imported
    settings = settings.for_device(composition.device)
    return Composed(settings, plugins, composition, tokenizer, template, probe.results)


def load_text(
    settings: Settings, plugins: Plugins, checkpoint: Checkpoint
) -> tuple[Tokenizer, ChatTemplate]:
    """Load the tokenizer and the chat template of a checkpoint.

    Raises:
        QuireError: A file of them is missing or invalid.
    """
    tokenizer = Tokenizer.load(_tokenizer_folder(settings, plugins, checkpoint))
    template = ChatTemplate.load(
        checkpoint.folder,
        settings.model.chat_template,
        tokenizer.special_tokens,
        () if settings.model.special_tokens_in_messages else tokenizer.special_spellings,
    )
    return tokenizer, template


def log_composition(composition: Composition, num_replicas: int = 1) -> None:
    """Log the chosen parts with their plugins and reasons."""
    logger.info(
        "%s on %s in %s: %s",
        composition.checkpoint.name,
        composition.device,
        composition.dtype.value,
        composition.dtype.reason,
    )
    if (contents := composition.checkpoint.contents) is not None:
        logger.info("GGUF file of %s", contents)
    if composition.description.left_out:
        logger.info(
            "%s are left out: the model reads and writes text only",
            composition.description.left_out,
        )
    logger.info(
        "kernels: %s; KV cache in %s; CUDA graphs: %s",
        composition.kernels,
        composition.kv_dtype,
        composition.cuda_graphs.reason,
    )
    if composition.device == "cpu":
        logger.info("decode steps: %s", composition.decode_steps)
    logger.info("weights of linear layers: %s", composition.weights)
    if composition.grid.size > 1:
        logger.info("workers: %s", composition.workers)
    if (warning := cores_warning(composition, num_replicas)) is not None:
        logger.warning("%s", warning)
    _warn_of_unavailable(composition)
    for (role, source, reason), choices in groupby(composition.choices, _heading):
        names = ", ".join(choice.name for choice in choices)
        logger.info("%s: %s, from %s (%s)", role, names, source, reason)
    for entry in composition.passed_over:
        _warn_of_duplicates(entry)
    if (warning := composition.deprecation) is not None:
        logger.warning("%s", warning)


def _heading(choice: Choice) -> tuple[str, str, str]:
    """Return what the choices of one line of the log have in common."""
    return choice.role, str(choice.entry.source), choice.reason


def _warn_of_duplicates(entry: Entry) -> None:
    """Log that plugins offer a name that quire's own part has."""
    logger.warning(
        "%s %r is also offered by %s; quire's own is used; to use another, set %s",
        entry.kind.title,
        entry.name,
        " and ".join(map(str, entry.passed_over)),
        " or ".join(map(entry.preference, entry.passed_over)),
    )


def _warn_of_unavailable(composition: Composition) -> None:
    """Log once for each cause which parts cannot run on this machine."""
    by_cause: dict[str, list[Rejection]] = {}
    for part in composition.unavailable:
        by_cause.setdefault(cause_of(part.reason), []).append(part)
    missing = _missing_kernels_reason(composition)
    if missing is not None and missing not in by_cause:
        logger.warning(NO_CPU_KERNELS, missing)
    for cause, parts in by_cause.items():
        if cause == missing:
            logger.warning(NO_CPU_KERNELS, parts[0].reason)
        else:
            names = " and ".join(part.name for part in parts)
            logger.warning(
                "%s cannot run on this machine, and other parts are used instead: %s",
                names,
                parts[0].reason,
            )
        for part in parts[1:]:
            logger.debug("%s cannot run on this machine: %s", part.name, part.reason)


def _missing_kernels_reason(composition: Composition) -> str | None:
    """Return why compiled CPU kernels are missing; None unless they would be used if present.

    Not derived from the reason for the kernels: without these kernels `auto` may have chosen a
    compute dtype that they do not support, and that would be the reason there.
    """
    machine = replace(composition.machine, native_unavailable_reason=None)
    dtype, kernels = composition.dtype, composition.kernels
    is_refused = machine.native_refusal(dtype.value) is not None
    is_asked_for = kernels.reason == ASKED_FOR or (dtype.reason == ASKED_FOR and is_refused)
    if composition.device != "cpu" or kernels.value != "torch" or is_asked_for:
        return None
    return composition.machine.native_unavailable_reason


def _tokenizer_folder(settings: Settings, plugins: Plugins, checkpoint: Checkpoint) -> Path:
    if settings.model.tokenizer is None:
        return checkpoint.folder
    other = replace(settings.model, model=settings.model.tokenizer, revision=None)
    return find_checkpoint(other, plugins.registries.checkpoints, with_weights=False).folder
