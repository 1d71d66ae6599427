"""The end of each request: its record, for the metrics and for the plugins' hooks."""

import logging
from collections.abc import Sequence

from quire.frontend.intake.request_hooks import RequestHook
from quire.frontend.metrics.engine_facts import EngineFacts
from quire.frontend.metrics.engine_metrics import EngineMetrics
from quire.messages import CompletedRequest

logger = logging.getLogger(__name__)


class RequestObserver:
    """Counts requests that have ended, and tells the plugins.

    Args:
        model_name: Name of the model that clients use.
        hooks: The plugins' `request_completed`; their errors are logged.
        facts: Settings of the engine that metrics show.

    Attributes:
        metrics: Metrics of the engine.
        facts: Settings of the engine that metrics show.
    """

    def __init__(
        self,
        model_name: str = "",
        hooks: Sequence[RequestHook] = (),
        facts: EngineFacts | None = None,
    ) -> None:
        self.metrics = EngineMetrics()
        self.facts = facts or EngineFacts()
        self.model_name = model_name
        self._hooks = tuple(hooks)

    def add(self, record: CompletedRequest) -> None:
        """Take the record of a request that has ended."""
        self.metrics.add_request(record)
        for source, hook in self._hooks:
            try:
                hook(record=record)
            except Exception:  # a plugin's error, which must not affect the completion
                logger.exception("plugin %s failed in request_completed", source)
