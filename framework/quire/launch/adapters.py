"""An adapter is its name and the content of its files, read here once and never from a client."""

import logging
from collections.abc import Mapping

from quire.compose.composition import Composition
from quire.config import DEFAULT_LORA_SOURCE, Settings
from quire.errors import AdapterSourceError, UnknownModelError
from quire.interfaces.lora import LoRASource
from quire.messages import AdapterRef
from quire.outputs import LoRARequest

logger = logging.getLogger(__name__)


def find_adapters(
    settings: Settings, composition: Composition, sources: Mapping[str, LoRASource]
) -> dict[str, AdapterRef]:
    """Find the adapters that the user names and those that ship with the checkpoint.

    A name of `lora_modules` without a path is the checkpoint's own adapter, if it has one of that
    name, and else what the source knows by it.

    Raises:
        AdapterError: The files of one are missing, or its source does not say what is in them.
    """
    choice = composition.lora_source
    if choice is None:
        return {}
    found = _shipped_adapters(composition, sources)
    for module in settings.lora.lora_modules:
        name, _, path = module.partition("=")
        if path or name not in found:
            found[name] = _ref(sources, choice.name, name, path or name)
    return found


def resolve_adapter(
    adapter: str | LoRARequest,
    offered: Mapping[str, AdapterRef],
    composition: Composition,
    sources: Mapping[str, LoRASource],
) -> AdapterRef:
    """Return the adapter that a caller means.

    Raises:
        UnknownModelError: It is not offered here.
        AdapterError: Its files are not there, or its source does not say what is in them.
    """
    if isinstance(adapter, str):
        if adapter not in offered:
            known = ", ".join(offered) or "none; start with enable_lora and lora_modules"
            raise UnknownModelError(f"there is no adapter {adapter!r} (offered: {known})")
        return offered[adapter]
    choice = composition.lora_source
    if choice is None:
        raise UnknownModelError("LoRA is off; start with enable_lora=True")
    return _ref(sources, choice.name, adapter.lora_name, adapter.lora_path)


def _shipped_adapters(
    composition: Composition, sources: Mapping[str, LoRASource]
) -> dict[str, AdapterRef]:
    """Find the adapters that come with the checkpoint; without a source for them there are none."""
    shipped = composition.checkpoint.adapters
    for choice in (composition.shipped_lora_source, composition.lora_source):
        if choice is not None and choice.name == DEFAULT_LORA_SOURCE:
            return {name: _ref(sources, choice.name, name, str(at)) for name, at in shipped.items()}
    if shipped:
        logger.warning(
            "the checkpoint's own adapters are not offered (%s): no plugin offers the LoRA source "
            "%r, which reads them",
            ", ".join(shipped),
            DEFAULT_LORA_SOURCE,
        )
    return {}


def _ref(sources: Mapping[str, LoRASource], source_name: str, name: str, path: str) -> AdapterRef:
    """Return an adapter by its content: KV that was computed with other files is never its own."""
    source = sources[source_name]
    folder = source.resolve(path)
    content_hash = source.content_hash(folder)
    if not isinstance(content_hash, str) or not content_hash:
        raise AdapterSourceError(
            f"{source} gave {content_hash!r} as the content hash of adapter {name!r}; "
            "it must be a text that changes with the files, as KV in the cache is found by it"
        )
    return AdapterRef(name, str(folder), content_hash, source_name)
