"""The host around the worker's half of a KV store: whatever the half does, every transfer ends.

A half that raises, or reports what it was never told, is switched off, and so is one that the
engine has given up: what was open has failed, and so has everything that is asked of it afterwards.
The engine then computes, and nobody waits.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from quire.compose.composition import Choice
from quire.errors import PluginError, PluginLoadError, QuireError
from quire.interfaces.attention import KVBackend
from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.kv_transfer import KVStoreWorker
from quire.messages import StepPlan, TransferReport
from quire.plugins.registry import import_reference

logger = logging.getLogger(__name__)


class KVStoreHost:
    """One worker's half of a KV store.

    Args:
        store: The half, attached.
        backends: Of the KV groups; they are told when loads have changed blocks under them.
        name: What the log calls the store.
    """

    def __init__(self, store: KVStoreWorker, backends: Sequence[KVBackend], name: str) -> None:
        self._store = store
        self._backends = backends
        self._name = name
        self._open: dict[int, bool] = {}  # by transfer id: whether it is a load
        self._is_off = False

    def begin_step(self, plan: StepPlan) -> None:
        """Start what the plan brings; before its forward pass."""
        self._open |= dict.fromkeys(plan.kv_loads, True) | dict.fromkeys(plan.kv_saves, False)
        if plan.stop_kv_store:
            self.shutdown()
        if self._is_off:
            return
        try:
            self._store.begin_step(plan.kv_transfers)
        except Exception:  # the edge of a plugin
            logger.exception("%s failed and is switched off; what it has is computed", self._name)
            self.shutdown()

    def report(self) -> TransferReport | None:
        """Return what ended, after a forward pass; None if nothing did."""
        report = self._ask()
        ended = [*report.done, *report.failed]
        if not ended:
            return None
        are_loads = [self._open.pop(transfer_id) for transfer_id in ended]
        if any(are_loads):
            for backend in self._backends:
                backend.forget_context()
        return report

    def shutdown(self) -> None:
        """Let the half give everything back; after that it writes to no block.

        May be called twice. What is open is reported as failed.
        """
        if self._is_off:
            return
        self._is_off = True
        try:
            self._store.shutdown()
        except Exception:  # the edge of a plugin
            logger.exception("%s could not be shut down", self._name)

    def _ask(self) -> TransferReport:
        if not self._is_off:
            try:
                report = self._store.report()
                self._check(report)
            except Exception:  # the edge of a plugin
                logger.exception(
                    "%s failed and is switched off; its reports are ignored", self._name
                )
                self.shutdown()
            else:
                return report
        return TransferReport(failed=list(self._open))

    def _check(self, report: TransferReport) -> None:
        """See that each transfer in a report is open, and that it ends once.

        Raises:
            PluginError: One is not, or ends twice.
        """
        if not isinstance(report, TransferReport):
            raise PluginError(f"report() returned a {type(report).__name__}, no TransferReport")
        for transfer_id, count in Counter([*report.done, *report.failed]).items():
            if transfer_id not in self._open:
                raise PluginError(f"transfer {transfer_id!r} is reported, and is not open")
            if count > 1:
                raise PluginError(f"transfer {transfer_id} is reported {count} times")


def build_kv_store(
    choice: Choice,
    options: Mapping[str, str],
    plan: KVPlan,
    memory: Mapping[str, Tensor],
    backends: Sequence[KVBackend],
) -> KVStoreHost:
    """Import the worker's half of a KV store, and show it the cache.

    Args:
        choice: The store.
        options: `--kv-store-options`, by key.
        plan: The memory of the cache.
        memory: The raw bytes of the plan's tensors, by the names of their layers.
        backends: Of the KV groups.

    Raises:
        SettingsError: An option cannot work.
        PluginLoadError: The half cannot be imported or built.
    """
    reference = choice.entry.capabilities.worker
    what = f"the worker's half of KV store {choice}"
    found = import_reference(reference, what)
    if not (isinstance(found, type) and issubclass(found, KVStoreWorker)):
        raise PluginLoadError(f"{what}: {reference} is not a subclass of {KVStoreWorker.__name__}")
    tensors = [memory[t.layer_names[0]].view(plan.num_blocks, -1) for t in plan.tensors]
    try:
        store = found(options, plan)
        store.attach(tensors)
    except QuireError:
        raise
    except Exception as error:
        raise PluginLoadError(f"{what} failed: {type(error).__name__}: {error}") from error
    return KVStoreHost(store, backends, str(choice))
