"""Runner of an engine that was shut down: it holds no model, and refuses every call."""

from collections.abc import Sequence
from typing import NoReturn

from quire.errors import EngineDeadError
from quire.interfaces.executor import StepRunner
from quire.messages import RowBitmask, StepPlan, WorkerControl


class StoppedRunner(StepRunner):
    """Raises `EngineDeadError` at each call."""

    def execute(self, plan: StepPlan) -> NoReturn:
        """Refuse the step."""
        del plan
        self._refuse()

    def sample(self, plan_id: int, masks: Sequence[RowBitmask]) -> NoReturn:
        """Refuse to sample."""
        del plan_id, masks
        self._refuse()

    def collect(self, plan_id: int) -> NoReturn:
        """Refuse to return tokens."""
        del plan_id
        self._refuse()

    def control(self, command: WorkerControl) -> NoReturn:
        """Refuse the command."""
        del command
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise EngineDeadError("the engine was shut down")
