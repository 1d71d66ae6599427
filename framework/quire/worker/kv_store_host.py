"""Host of the worker side of a KV store: guarantees that every transfer ends.

A worker side that raises, or reports an unknown transfer, is switched off, and so is one that the
engine has stopped. Its open transfers fail, and so do all later ones. The engine then computes the
tokens itself, and no request waits.

After an interrupted step (Ctrl-C) the engine sends again what may be lost, and asks for the reports
that may be. So every message reaches the store once, and every report the engine. An interrupt
waits for the end of a call of the store. A second one does not: the store is switched off then, as
it is unknown what it did.
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
from quire.messages import PlannedTransfers, StepPlan, TransferReport
from quire.plugins.registry import import_reference
from quire.process.interrupts import Interrupts

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
        self._interrupts = Interrupts()
        self._begun = 0  # id of the last plan whose transfers were started
        self._reports: dict[int, TransferReport] = {}  # by plan: those that may not have arrived
        self._is_repeating = False  # whether the next report has those that may not have arrived
        self._is_changing = False  # an interrupt now would leave a call of the store unfinished

    def begin_step(self, plan: StepPlan) -> None:
        """Start the transfers of a plan, before its forward pass."""
        with self._interrupts:
            self._begin_plan(plan)

    def report(self, plan_id: int) -> TransferReport | None:
        """Return the transfers that have ended, after a forward pass; None if none have.

        Args:
            plan_id: Id of the plan with whose result the engine receives the report.
        """
        with self._interrupts:
            return self._with_repeated(self._recorded_report(plan_id))

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

    def _begin_plan(self, plan: StepPlan) -> None:
        """Start the transfers of a plan, and those of earlier ones that were lost."""
        for applied in [plan_id for plan_id in self._reports if plan_id <= plan.kv_applied]:
            del self._reports[applied]
        if plan.stop_kv_store:
            self.shutdown()
        self._end_interrupted()
        self._is_repeating |= bool(plan.kv_resent)
        for resent in plan.kv_resent:
            if resent.plan_id > self._begun:
                self._begin(resent)
        self._begin(PlannedTransfers(plan.plan_id, plan.kv_transfers, plan.kv_loads, plan.kv_saves))

    def _recorded_report(self, plan_id: int) -> TransferReport:
        """Return the transfers that have ended, and keep them until they have arrived."""
        self._end_interrupted()
        self._is_changing = True
        report = self._next_report()
        ended = [*report.done, *report.failed]
        if ended:
            self._reports[plan_id] = report  # first: from now on it can be repeated
        are_loads = [self._open.pop(transfer_id) for transfer_id in ended]
        if any(are_loads):
            for backend in self._backends:
                backend.forget_context()
        self._is_changing = False
        return report

    def _begin(self, planned: PlannedTransfers) -> None:
        """Start the transfers of one plan."""
        self._open |= dict.fromkeys(planned.loads, True) | dict.fromkeys(planned.saves, False)
        self._is_changing = True
        if not self._is_off:
            try:
                self._store.begin_step(planned.message)
            except Exception:  # the edge of a plugin
                logger.exception(
                    "%s failed and is switched off; the tokens it stores are computed instead",
                    self._name,
                )
                self.shutdown()
        self._begun = planned.plan_id
        self._is_changing = False

    def _end_interrupted(self) -> None:
        """Switch the store off if its last call was interrupted."""
        if self._is_changing:
            self._is_changing = False
            logger.error(
                "%s was interrupted in the middle of a call and is switched off; the tokens it "
                "stores are computed instead",
                self._name,
            )
            self.shutdown()

    def _with_repeated(self, report: TransferReport) -> TransferReport | None:
        """Return a report with those that may not have arrived, if they were asked for."""
        if self._is_repeating:
            reports = self._reports.values()
            report = TransferReport(
                done=[transfer_id for each in reports for transfer_id in each.done],
                failed=[transfer_id for each in reports for transfer_id in each.failed],
            )
            self._is_repeating = False
        return report if report.done or report.failed else None

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
