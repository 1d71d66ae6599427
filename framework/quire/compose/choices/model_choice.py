"""Selection of the model: by the checkpoint's architecture, or a fallback for those without one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quire.compose.checkpoint import Checkpoint
from quire.compose.choices.choosing import ASKED_FOR, AUTO
from quire.compose.composition import Choice, Rejection
from quire.config import ModelSettings
from quire.errors import PluginLoadError, QuireError, UnknownNameError, UnsupportedModelError
from quire.interfaces.model import Model, ModelDescription
from quire.plugins.registry import Entry, Registry, check_api, import_reference

OWN = "quire"  # of --model-impl: the model that a plugin registers for the architecture
ROLE = "model"


def choose_model(
    registry: Registry[type[Model]], settings: ModelSettings, checkpoint: Checkpoint
) -> tuple[Choice, ModelDescription]:
    """Choose the model, and describe it.

    Args:
        registry: Models of the installed plugins.
        settings: Settings with the implementation that the user asked for.
        checkpoint: Files of the model; its config names the architecture.

    Raises:
        UnsupportedModelError: Nothing runs the architecture, or a value of the config is not
            supported.
        PluginError: The user named a fallback that does not exist; or the model that was chosen
            cannot be loaded.
    """
    try:
        return _choose(registry, settings, checkpoint)
    except UnsupportedModelError as error:
        raise checkpoint.explained(error) from error


def _choose(
    registry: Registry[type[Model]], settings: ModelSettings, checkpoint: Checkpoint
) -> tuple[Choice, ModelDescription]:
    architecture, wanted = checkpoint.architecture, settings.model_impl
    fallbacks = [name for name in registry if _is_fallback(registry, name)]
    folder = checkpoint.folder if settings.trust_remote_code else None
    if wanted not in (AUTO, OWN):
        return _named_fallback(registry, fallbacks, wanted, checkpoint, folder)
    if architecture in registry and architecture not in fallbacks:
        entry = registry.entry(architecture)
        check_api(entry)
        choice = Choice(ROLE, entry, "named by the checkpoint")
        return choice, _describe(entry, checkpoint.config)
    if wanted == OWN:
        raise _unsupported(registry, fallbacks, architecture, {})
    return _first_fallback(registry, fallbacks, checkpoint, folder)


def _named_fallback(
    registry: Registry[type[Model]],
    fallbacks: list[str],
    wanted: str,
    checkpoint: Checkpoint,
    folder: Path | None,
) -> tuple[Choice, ModelDescription]:
    if wanted not in fallbacks:
        known = ", ".join((AUTO, OWN, *fallbacks))
        raise UnknownNameError(f"unknown model implementation {wanted!r} (known: {known})")
    entry = registry.entry(wanted)
    check_api(entry)
    try:
        description = _describe(entry, checkpoint.config, folder)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(
            f"--model-impl {wanted}: {checkpoint.architecture} cannot run through it: {error}"
        ) from error
    return Choice(ROLE, entry, ASKED_FOR), description


def _first_fallback(
    registry: Registry[type[Model]],
    fallbacks: list[str],
    checkpoint: Checkpoint,
    folder: Path | None,
) -> tuple[Choice, ModelDescription]:
    """Choose the first fallback, by name, that can run the model."""
    reasons: dict[str, str] = {}
    for name in fallbacks:
        try:
            entry = registry.entry(name)
            check_api(entry)
            description = _describe(entry, checkpoint.config, folder)
        except QuireError as error:  # what is merely installed is passed over, with its reason
            reasons[name] = str(error)
            continue
        reason = f"{AUTO}: no plugin registers {checkpoint.architecture}"
        rejected = tuple(Rejection(*each) for each in reasons.items())
        return Choice(ROLE, entry, reason, rejected), description
    raise _unsupported(registry, fallbacks, checkpoint.architecture, reasons)


def _unsupported(
    registry: Registry[type[Model]],
    fallbacks: list[str],
    architecture: str,
    reasons: dict[str, str],
) -> UnsupportedModelError:
    """Return the error for an unknown architecture: similar names, and each fallback's reason."""
    unknown = registry.unknown(architecture, hidden=fallbacks)
    refusals = "".join(
        f". It cannot run through fallback {name!r} either: {reason}"
        for name, reason in reasons.items()
    )
    return UnsupportedModelError(
        f"{unknown}{refusals}. A plugin adds an architecture with the hook register_models: see "
        "docs/plugins/models.md"
    )


def _is_fallback(registry: Registry[type[Model]], name: str) -> bool:
    entry = registry.uncontested(name)
    return entry is not None and entry.capabilities.is_fallback


def _describe(entry: Entry, *arguments: object) -> ModelDescription:
    """Describe a model by its torch-free function.

    A `QuireError` of that function is raised as it is, any other error as a `PluginLoadError`.
    """
    what = f"the description of model {entry.name!r} of {entry.source}"
    describe: Callable[..., Any]
    describe = import_reference(entry.capabilities.describe, what)  # type: ignore[assignment]
    try:
        description = describe(*arguments)
    except QuireError:
        raise
    except Exception as error:
        raise PluginLoadError(
            f"{what} failed on this config.json: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(description, ModelDescription):
        raise PluginLoadError(
            f"{what} returned a {type(description).__name__}, not a ModelDescription"
        )
    return description
