"""Start of a front end in a process of its own, for an engine that its parent has started.

It composes by itself from the parent's settings while the engine loads, and then checks that it
chose the same parts.
"""

from collections.abc import Mapping

import msgspec

from quire.config import Settings
from quire.errors import PluginError
from quire.launch.agreement import difference, own_choices
from quire.launch.composing import Composed, compose_engine
from quire.launch.engine import Engine, assembled
from quire.launch.engine_process.joined_engine import JoinedEngine
from quire.launch.front_end_parts import FrontEndParts
from quire.messages import AdapterRef, Started
from quire.plugins.loading import load_plugins


class FrontEndPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a front end needs to choose the parts of its parent.

    Attributes:
        settings: Settings as given by the user.
        probed: Results of the parent's probes.
        choices: Choices of the parent, which the front end must share.
    """

    settings: Settings
    probed: dict[str, str | None]
    choices: list[str]

    @classmethod
    def of(cls, settings: Settings, composed: Composed) -> "FrontEndPlan":
        """Return the plan for the front ends of an engine."""
        return cls(
            settings=settings,
            probed=dict(composed.probed),
            choices=own_choices(composed.composition),
        )


class EngineAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a front end finds its engine, which is ready for requests.

    Attributes:
        address: Socket address on which the engine waits for it.
        pid: Process id of the engine.
        started: What the start of the engine found.
        adapters: Adapters by the names that requests use; all are loaded.
    """

    address: str
    pid: int
    started: Started
    adapters: dict[str, AdapterRef]


class FrontEndStart:
    """A front end whose parts are chosen, and whose engine may not be ready.

    Args:
        plan: What its parent has chosen.

    Raises:
        PluginError: This process chose other parts than its parent.
    """

    def __init__(self, plan: FrontEndPlan) -> None:
        plugins = load_plugins(plan.settings.plugins)
        self._composed = compose_engine(plan.settings, plugins, probed=plan.probed)
        names = ("the server", "the front end")
        found = difference(plan.choices, own_choices(self._composed.composition), names)
        if found is not None:
            raise PluginError(
                "a front end chose other parts than its server; was a plugin installed or changed "
                f"in between?\n{found}"
            )

    def join(self, engine: EngineAddress) -> Engine:
        """Connect to the engine.

        Args:
            engine: Where it is.

        Raises:
            EngineDeadError: The engine is dead.
        """
        adapters: Mapping[str, AdapterRef] = engine.adapters
        parts = FrontEndParts.load(self._composed, adapters)
        core = JoinedEngine.join(engine.address, engine.pid)
        return assembled(self._composed, parts, core, engine.started, is_shared=True)
