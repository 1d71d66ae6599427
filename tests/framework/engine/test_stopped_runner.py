"""The runner of an engine that was shut down refuses every call."""

import pytest

from quire.engine.stopped_runner import StoppedRunner
from quire.errors import EngineDeadError
from quire.messages import AdapterRef, LoadAdapter, StepPlan


@pytest.mark.parametrize(
    "call",
    [
        lambda runner: runner.execute(StepPlan(plan_id=1, requests=[])),
        lambda runner: runner.sample(1, ()),
        lambda runner: runner.collect(1),
        lambda runner: runner.control(LoadAdapter(AdapterRef("an adapter", "a/folder"))),
    ],
)
def test_every_call_is_refused(call):
    with pytest.raises(EngineDeadError, match="the engine was shut down"):
        call(StoppedRunner())
