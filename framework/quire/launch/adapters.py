"""LoRA adapters of an engine: lookup by name, with a hash of the content of their files."""

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

    A name of `lora_modules` without a path is the checkpoint's own adapter if it has one of that
    name, else the LoRA source resolves it.

    Raises:
        AdapterError: Files of an adapter are missing, or its source returned no content hash.
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
    """Return the adapter of a request.

    Raises:
        UnknownModelError: The adapter is not served here.
        AdapterError: Its files are missing, or its source returned no content hash.
    """
    if isinstance(adapter, str):
        if adapter not in offered:
            known = ", ".join(offered) or "none; start with enable_lora and lora_modules"
            raise UnknownModelError(f"there is no adapter {adapter!r} (known: {known})")
        return offered[adapter]
    choice = composition.lora_source
    if choice is None:
        raise UnknownModelError("LoRA is off; start with enable_lora=True")
    return _ref(sources, choice.name, adapter.lora_name, adapter.lora_path)


def _shipped_adapters(
    composition: Composition, sources: Mapping[str, LoRASource]
) -> dict[str, AdapterRef]:
    """Find the adapters that come with the checkpoint; none without a source that reads them."""
    shipped = composition.checkpoint.adapters
    for choice in (composition.shipped_lora_source, composition.lora_source):
        if choice is not None and choice.name == DEFAULT_LORA_SOURCE:
            return {name: _ref(sources, choice.name, name, str(at)) for name, at in shipped.items()}
    if shipped:
        logger.warning(
            "the checkpoint's own adapters (%s) are not served: no plugin offers the LoRA source "
            "%r, which reads them",
            ", ".join(shipped),
            DEFAULT_LORA_SOURCE,
        )
    return {}


def _ref(sources: Mapping[str, LoRASource], source_name: str, name: str, path: str) -> AdapterRef:
    """Return an adapter with its content hash, so that other files never share its cached KV."""
    source = sources[source_name]
    folder = source.resolve(path)
    content_hash = source.content_hash(folder)
    if not isinstance(content_hash, str) or not content_hash:
        raise AdapterSourceError(
            f"{source} returned {content_hash!r} as the content hash of adapter {name!r}; it must "
            "be a non-empty text that changes with the files, because cached KV is looked up by it"
        )
    return AdapterRef(name, str(folder), content_hash, source_name)
