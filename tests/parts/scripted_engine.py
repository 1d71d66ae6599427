"""`LLM` and `AsyncEngine` over a scripted core: the whole path in and out, without a model."""

from collections.abc import Sequence

import pytest
from scripted_core import Script, ScriptedCore

from quire.errors import AdapterError
from quire.launch import engine
from quire.messages import Control, LoadAdapter, Started


class AdaptingCore(ScriptedCore):
    """A scripted core that loads adapters.

    Args:
        script: As for `ScriptedCore`.
        broken: Names of adapters that it refuses.
        options: As for `ScriptedCore`.
    """

    def __init__(self, script: Script, broken: Sequence[str] = (), **options: int) -> None:
        super().__init__(script, **options)
        self.broken = broken

    @property
    def loaded(self) -> list[str]:
        """Names of the adapters that it was to load, in order."""
        return [c.adapter.name for c in self.controls if isinstance(c, LoadAdapter)]

    def control(self, command: Control) -> None:
        self.controls.append(command)
        if isinstance(command, LoadAdapter) and command.adapter.name in self.broken:
            raise AdapterError(f"adapter {command.adapter.name!r} is broken")


def start_with(
    monkeypatch: pytest.MonkeyPatch, core: ScriptedCore, max_model_len: int = 128
) -> None:
    """Let the engine that is started next have this core."""
    started = core, Started(max_model_len)
    monkeypatch.setattr(engine, "_start_core", lambda *_: started)
