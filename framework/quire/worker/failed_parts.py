"""Parts that fail to load on this machine: refused if the user named them, otherwise replaced.

Native libraries of the chosen parts are compiled while the weights load, so it is known only then
whether each is available. An attention backend may also refuse when it is built.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from quire.compose.compose import corrected
from quire.compose.composition import Composition
from quire.errors import NativeUnavailableError, QuireError, RefusedError
from quire.layers.attention.caching_layer import CachingLayer
from quire.messages import LoadFailures
from quire.native.layer_kernels import cpu_layers, cpu_lora
from quire.plugins.loading import Registries
from quire.worker.loading.weight_loading import as_module
from quire.worker.memory.largest_step import BackendKind
from quire.worker.memory.profiling import LoadedModel, backend_kinds

logger = logging.getLogger(__name__)


class PartLibraries:
    """Native libraries of the chosen parts; to be created before the model is built.

    Imports the parts, so that a broken one fails before the weights are read.

    Args:
        composition: Chosen parts.
        registries: Plugin registries that resolve their names.
    """

    def __init__(self, composition: Composition, registries: Registries) -> None:
        self._layers: list[Callable[[], object]] = []  # each waits for a library
        self._quantization: list[Callable[[], object]] = []
        self._samplers: list[Callable[[], object]] = []
        self._adapters: list[Callable[[], object]] = []
        if composition.kernels == "native":
            cpu_layers.LIBRARY.begin()
            self._layers.append(cpu_layers.LIBRARY.load)
            if composition.lora_source is not None:
                cpu_lora.LIBRARY.begin()
                self._adapters.append(cpu_lora.LIBRARY.load)
        if (quantization := composition.quantization) is not None:
            method = registries.quantizations.load(quantization.entry)
            method.begin_loading()
            self._quantization.append(method.end_loading)
        for choice in composition.attention_backends:
            registries.attention_backends.load(choice.entry).begin_loading()
        for choice in composition.samplers:
            sampler = registries.samplers.load(choice.entry)
            sampler.begin_loading()
            self._samplers.append(sampler.end_loading)
        self._waiter = threading.Thread(target=self._wait, name="await kernels", daemon=True)
        self._waiter.start()

    def are_ready(self) -> bool:
        """Whether all libraries that layers need for their weights have been loaded."""
        return not self._waiter.is_alive()

    def failures(self, named_native: bool) -> LoadFailures:
        """Wait for the libraries, and return the reasons why some are unavailable.

        Args:
            named_native: Whether the user asked for native kernels.

        Raises:
            NativeUnavailableError: A library is unavailable, and the user asked for it.
        """
        if named_native:  # otherwise adapters fall back to torch operators in enable_lora
            _failure(self._adapters, named_native)
        return LoadFailures(
            kernels=_failure(self._layers, named_native),
            quantization=_failure(self._quantization, named_native),
            samplers=_failure(self._samplers, named_native),
        )

    def _wait(self) -> None:
        for wait in (*self._layers, *self._quantization):
            with suppress(QuireError):  # `failures` waits again, and reports it
                wait()


def replace_failed(
    loaded: LoadedModel, libraries: PartLibraries
) -> tuple[Composition, LoadFailures]:
    """Return the composition without the parts that failed to load, and the failures.

    Raises:
        NativeUnavailableError: The user asked for native kernels that are unavailable.
        RefusedError: The user named a backend that refuses, or no other backend is usable.
    """
    is_native_named = loaded.settings.model.kernels == "native"
    failures = libraries.failures(is_native_named)
    refused: dict[str, str] = {}
    while True:
        failures = LoadFailures(
            failures.kernels, failures.quantization, failures.samplers, dict(refused)
        )
        composition = corrected(loaded.composition, loaded.settings, loaded.registries, failures)
        found = refused_backends(replace(loaded, composition=composition))
        if not found:
            _log_weights(composition, failures)
            return composition, failures
        for name, reason in found.items():
            _check_not_named(loaded, composition, name, reason)
        refused |= found


def refused_backends(loaded: LoadedModel) -> dict[str, str]:
    """Return the attention backends that refuse their layers' shapes: name -> reason.

    Each is built once as it will be for the KV cache, and dropped. A backend that does not
    implement the contract of its layer is skipped; `LayerBinding` reports it.
    """
    modules = dict(as_module(loaded.model).named_modules())
    kinds = backend_kinds(loaded)
    tried: set[BackendKind] = set()
    refused: dict[str, str] = {}
    for layer in loaded.composition.description.kv_layers:
        kind, module = kinds.get(layer.name), modules.get(layer.name)
        if kind is None or kind in tried or not isinstance(module, CachingLayer):
            continue
        tried.add(kind)
        if not issubclass(kind.backend_class, module.contract):
            continue
        try:
            kind.backend_class(kind.shape)
        except RefusedError as refusal:
            refused[loaded.composition.attention_backend_of(layer).name] = str(refusal)
    return refused


def _failure(waits: list[Callable[[], object]], is_named: bool) -> str | None:
    for wait in waits:
        try:
            wait()
        except NativeUnavailableError as error:
            if is_named:
                raise
            return str(error)
    return None


def _check_not_named(loaded: LoadedModel, composition: Composition, name: str, reason: str) -> None:
    """Log that another backend replaces one that refused, unless the user named it.

    Raises:
        RefusedError: The user named the backend.
    """
    (choice,) = (one for one in composition.attention_backends if one.name == name)
    runs_kernels = choice.entry.capabilities.needs_native
    if name == loaded.settings.parts.attention_backend:
        raise RefusedError(f"attention backend {name!r} cannot be used here: {reason}")
    if runs_kernels and loaded.settings.model.kernels == "native":
        raise RefusedError(
            f"--kernels native: attention backend {name!r} cannot be used here: {reason}"
        )
    logger.log(
        logging.INFO if runs_kernels else logging.WARNING,  # its library has logged a warning
        "attention backend %s cannot be used here: %s; the next best backend replaces it",
        name,
        reason.partition("\n")[0],
    )


def _log_weights(composition: Composition, failures: LoadFailures) -> None:
    if failures.quantization is not None:
        logger.info("weights of linear layers: %s", composition.weights)
