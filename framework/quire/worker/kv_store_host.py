"""Host of the worker side of a KV store: guarantees that every transfer ends.

A worker side that raises, or reports an unknown transfer, is switched off, and so is one that the
engine has stopped. Its open transfers fail, and so do all later ones. The engine then computes the
tokens itself, and no request waits.
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
    """Worker side of a KV store, guarded.

    Args:
        store: Worker side of the store, attached to the KV cache.
        backends: Attention backends, which forget their context when a load has changed blocks.
        name: Name of the store in log messages.
    """

    def __init__(self, store: KVStoreWorker, backends: Sequence[KVBackend], name: str) -> None:
        self._store = store
        self._backends = backends
        self._name = name
        self._open: dict[int, bool] = {}  # transfer id -> whether it is a load
        self._is_off = False

    def begin_step(self, plan: StepPlan) -> None:
        """Start the transfers of a plan, before its forward pass."""
        self._open |= dict.fromkeys(plan.kv_loads, True) | dict.fromkeys(plan.kv_saves, False)
        if plan.stop_kv_store:
            self.shutdown()
        if self._is_off:
            return
        try:
            self._store.begin_step(plan.kv_transfers)
        except Exception:  # the edge of a plugin
            logger.exception(
                "%s failed and is switched off; the tokens it stores are computed instead",
                self._name,
            )
            self.shutdown()

    def report(self) -> TransferReport | None:
        """Return the transfers that have ended, after a forward pass; None if none have."""
        report = self._next_report()
        ended = [*report.done, *report.failed]
        if not ended:
            return None
        are_loads = [self._open.pop(transfer_id) for transfer_id in ended]
        if any(are_loads):
            for backend in self._backends:
                backend.forget_context()
        return report

    def shutdown(self) -> None:
        """Shut the worker side down; after that it writes to no block.

        May be called twice. Open transfers are reported as failed.
        """
        if self._is_off:
            return
        self._is_off = True
        try:
            self._store.shutdown()
        except Exception:  # the edge of a plugin
            logger.exception("%s could not be shut down", self._name)

    def _next_report(self) -> TransferReport:
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
        """Check that each transfer in a report is open, and is reported once.

        Raises:
            PluginError: A transfer is not open, or is reported twice.
        """
        if not isinstance(report, TransferReport):
            raise PluginError(f"report() returned a {type(report).__name__}, not a TransferReport")
        for transfer_id, count in Counter([*report.done, *report.failed]).items():
            if transfer_id not in self._open:
                raise PluginError(f"transfer {transfer_id!r} is reported but is not open")
            if count > 1:
                raise PluginError(f"transfer {transfer_id} is reported {count} times")


def build_kv_store(
    choice: Choice,
    options: Mapping[str, str],
    plan: KVPlan,
    memory: Mapping[str, Tensor],
    backends: Sequence[KVBackend],
) -> KVStoreHost:
    """Import the worker side of a KV store, and attach it to the KV cache.

    Args:
        choice: Chosen store.
        options: Options of the store by key (`--kv-store-options`).
        plan: Memory plan of the KV cache.
        memory: Raw bytes of the plan's tensors, by layer name.
        backends: Attention backends of the KV groups.

    Raises:
        SettingsError: An option is invalid.
        PluginLoadError: The worker side cannot be imported or built.
    """
    reference = choice.entry.capabilities.worker
    what = f"the worker side of KV store {choice}"
    store_class = import_reference(reference, what)
    if not (isinstance(store_class, type) and issubclass(store_class, KVStoreWorker)):
        raise PluginLoadError(f"{what}: {reference} is not a subclass of {KVStoreWorker.__name__}")
    tensors = [memory[t.layer_names[0]].view(plan.num_blocks, -1) for t in plan.tensors]
    try:
        store = store_class(options, plan)
        store.attach(tensors)
    except QuireError:
        raise
    except Exception as error:
        raise PluginLoadError(f"{what} failed: {type(error).__name__}: {error}") from error
    return KVStoreHost(store, backends, str(choice))
