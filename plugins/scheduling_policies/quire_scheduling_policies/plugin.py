"""Registration of the scheduling policies of this package. Imports nothing heavy."""

from quire import Registrar, hookimpl
from quire.interfaces.scheduling import SchedulingPolicy, SchedulingPolicyCapabilities


@hookimpl
def register_scheduling_policies(registry: Registrar[type[SchedulingPolicy]]) -> None:
    """Register the scheduling policies."""
    registry.add(
        "fcfs",
        "quire_scheduling_policies.fcfs:FirstComeFirstServed",
        capabilities=SchedulingPolicyCapabilities(),
    )
    registry.add(
        "priority",
        "quire_scheduling_policies.priority:PriorityFirst",
        capabilities=SchedulingPolicyCapabilities(reads_priority=True),
    )
