"""An adapter is its name and the content of its files, read here once and never from a client."""

from collections.abc import Mapping

from quire.composition import Composition
from quire.config import Settings
from quire.errors import AdapterError, UnknownModelError
from quire.interfaces.lora import LoRASource
from quire.messages import AdapterRef
from quire.outputs import LoRARequest
from quire.plugins import Registries


def find_adapters(
    settings: Settings, composition: Composition, registries: Registries
) -> dict[str, AdapterRef]:
    """Find the adapters that the user names and those that ship with the checkpoint.

    Raises:
        AdapterError: The files of one are missing, or its source does not say what is in them.
    """
    source = _source(composition, registries)
    if source is None:
        return {}
    wanted = {name: str(path) for name, path in composition.checkpoint.adapters.items()}
    for module in settings.lora.lora_modules:
        name, _, path = module.partition("=")
        wanted[name] = path or wanted.get(name, name)
    return {name: _ref(source, name, path) for name, path in wanted.items()}


def resolve_adapter(
    adapter: str | LoRARequest,
    offered: Mapping[str, AdapterRef],
    composition: Composition,
    registries: Registries,
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
    source = _source(composition, registries)
    if source is None:
        raise UnknownModelError("LoRA is off; start with enable_lora=True")
    return _ref(source, adapter.lora_name, adapter.lora_path)


def _source(composition: Composition, registries: Registries) -> LoRASource | None:
    choice = composition.lora_source
    return None if choice is None else registries.lora_sources.load(choice.entry)()


def _ref(source: LoRASource, name: str, path: str) -> AdapterRef:
    """Return an adapter by its content: KV that was computed with other files is never its own."""
    folder = source.resolve(path)
    content_hash = source.content_hash(folder)
    if not isinstance(content_hash, str) or not content_hash:
        kind = type(source)
        raise AdapterError(
            f"the LoRA source {kind.__module__}.{kind.__qualname__} gave {content_hash!r} as the "
            f"content hash of adapter {name!r} in {folder}; it must be a text that changes with "
            "the files, as KV in the cache is found by it"
        )
    return AdapterRef(name, str(folder), content_hash)
