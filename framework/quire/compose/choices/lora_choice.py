"""Selection of LoRA sources: the configured one, and quire's own for a checkpoint's adapters.

The adapters that a plugin ships with a checkpoint are in peft's layout, which quire's own source
reads. Another source receives only the adapters that the user names, because its layout and names
may differ.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from quire.compose.choices.choosing import choose_optional
from quire.compose.composition import Choice, Composition
from quire.config import DEFAULT_LORA_SOURCE, LoRASettings
from quire.errors import (
    AdapterError,
    AdapterSourceError,
    PluginError,
    PluginLoadError,
    QuireError,
    RefusedError,
    SettingsError,
)
from quire.interfaces.lora import Adapter, LoRASource
from quire.plugins.loading import Registries

R = TypeVar("R")


def choose_lora(registries: Registries, settings: LoRASettings, model: Choice) -> Choice | None:
    """Choose the LoRA source; None if LoRA is off.

    Raises:
        RefusedError: The model does not support LoRA.
        UnknownNameError: No plugin offers a source of that name.
        ContestedNameError: Several third-party plugins offer a source of that name.
    """
    if not settings.enable_lora:
        return None
    if not model.entry.capabilities.supports_lora:
        raise RefusedError(f"model {model.name!r} does not support LoRA; leave out --enable-lora")
    return choose_optional(registries.lora_sources, settings.lora_source, DEFAULT_LORA_SOURCE)


def choose_shipped_lora(
    registries: Registries, chosen: Choice | None, adapters: Mapping[str, Path]
) -> Choice | None:
    """Choose the source of a checkpoint's own adapters, if the chosen one does not read them.

    Returns:
        None if the checkpoint has no adapters, if the chosen source reads them, or if quire's own
        source is not available.
    """
    if chosen is None or not adapters or chosen.name == DEFAULT_LORA_SOURCE:
        return None
    try:
        entry = registries.lora_sources.entry(DEFAULT_LORA_SOURCE)
    except PluginError:  # blocked or contested; the user did not name it
        return None
    return Choice("LoRA source (shipped)", entry, "for the adapters that come with the checkpoint")


def load_sources(
    settings: LoRASettings, composition: Composition, registries: Registries
) -> dict[str, LoRASource]:
    """Build the LoRA sources of an engine, by name, the chosen one first.

    Raises:
        PluginError: The code of a source cannot be loaded, or fails to build the source.
        SettingsError: An option of the chosen source is unknown or invalid.
    """
    sources: dict[str, LoRASource] = {}
    for choice in (composition.lora_source, composition.shipped_lora_source):
        if choice is not None:
            options = settings.source_options if choice is composition.lora_source else {}
            sources[choice.name] = NamedSource(_build(choice, registries, options), choice)
    return sources


class NamedSource(LoRASource):
    """LoRA source that adds the name of its plugin to every error.

    Args:
        source: Source that finds and reads adapters.
        choice: Choice of that source, with its plugin.
    """

    def __init__(self, source: LoRASource, choice: Choice) -> None:
        self._source = source
        self._choice = choice

    def __str__(self) -> str:
        return str(self._choice)

    def resolve(self, name: str) -> Path:
        """Find an adapter.

        Raises:
            AdapterError: There is no such adapter, or the source failed.
        """
        what = f"adapter {Path(name).name!r}"
        folder = self._call(f"to find {what}", lambda: self._source.resolve(name))
        if not isinstance(folder, Path):
            raise AdapterSourceError(
                f"{self} returned {_type_name(folder)} as the folder of {what}"
            )
        return folder

    def content_hash(self, folder: Path) -> str:
        """Hash an adapter.

        Raises:
            AdapterError: A file is missing, or the source failed.
        """
        return self._call(
            f"to hash adapter {folder.name!r}", lambda: self._source.content_hash(folder)
        )

    def read(self, folder: Path, max_rank: int) -> Adapter:
        """Read an adapter.

        Raises:
            AdapterError: The adapter is not supported, or the source failed.
        """
        what = f"to read adapter {folder.name!r}"
        adapter = self._call(what, lambda: self._source.read(folder, max_rank))
        if not isinstance(adapter, Adapter):
            raise AdapterSourceError(f"{self} read {_type_name(adapter)}, not an Adapter")
        return adapter

    def _call(self, what: str, call: Callable[[], R]) -> R:
        """Call the source; errors name no folder, because clients may read them."""
        try:
            return call()
        except QuireError as error:
            if str(self) in str(error):
                raise
            raise AdapterError(f"{self}: {error}") from error
        except Exception as error:
            failure = f"{self} failed {what}: {type(error).__name__}"
            raise AdapterSourceError(failure) from error


def _type_name(value: object) -> str:
    """Return the type of a value for an error; its text is left out, as clients may read it."""
    return "None" if value is None else f"a {type(value).__name__}"


def _build(choice: Choice, registries: Registries, options: Mapping[str, str]) -> LoRASource:
    kind = registries.lora_sources.load(choice.entry)
    try:
        return kind.from_options(options)
    except SettingsError as error:
        raise SettingsError(f"{choice}: {error}") from error
    except Exception as error:
        raise PluginLoadError(
            f"{choice} cannot be built: {type(error).__name__}: {error}"
        ) from error
