"""Whether an adapter was made for the model that is served, by the names that both go by.

An adapter names its base model as its trainer called it: a hub id, or a folder on another machine.
So the last part of a name decides, and its case does not: `/data/Qwen3-0.6B` is `Qwen/Qwen3-0.6B`.
"""

import logging
import re
from collections.abc import Sequence

from quire.compose.checkpoint import Checkpoint
from quire.errors import AdapterError
from quire.messages import AdapterRef

HUB_CACHE = "models--"  # a folder of the hub's cache: models--OWNER--NAME/snapshots/COMMIT
SAYS_NOTHING = frozenset({"", ".", ".."})

logger = logging.getLogger(__name__)


class BaseModel:
    """The model that is served.

    Args:
        names: What it is called.
        is_strict: Refuse adapters that were made for another one; else a warning is logged.
    """

    def __init__(self, names: Sequence[str], *, is_strict: bool) -> None:
        self._names = {last_name(name): name for name in reversed(names)}  # the first counts
        self._is_strict = is_strict
        self._told: set[AdapterRef] = set()

    def check(self, ref: AdapterRef, base_model: str | None) -> None:
        """Compare what an adapter says that it was made for; each is logged once.

        Raises:
            AdapterError: It was made for another model, and that is not allowed.
        """
        wanted = last_name(base_model or "")
        if wanted in SAYS_NOTHING or wanted in self._names:
            return
        served = ", ".join(repr(name) for name in self._names.values())
        made_for = f"adapter {ref.name!r} says that it was made for {base_model!r}"
        if self._is_strict:
            raise AdapterError(
                f"{made_for}, and the model that is served is called {served}; leave out "
                "--strict-adapters to serve it all the same"
            )
        if ref not in self._told:
            self._told.add(ref)
            logger.warning(
                "%s, and the model that is served is called %s: if they are not the same, its "
                "completions are wrong. --strict-adapters refuses such adapters",
                made_for,
                served,
            )


def names_of(checkpoint: Checkpoint) -> list[str]:
    """Return what a model is called: by the user, by its folder and by its own config."""
    own = checkpoint.config.get("_name_or_path")
    names = [checkpoint.name, str(checkpoint.folder), own if isinstance(own, str) else ""]
    return [name for name in names if last_name(name) not in SAYS_NOTHING]


def last_name(name: str) -> str:
    """Return the part of a hub id or folder by which models are compared."""
    parts = [part for part in re.split(r"[/\\]", name.strip()) if part] or [""]
    for part in parts:
        if part.startswith(HUB_CACHE):
            return part.rpartition("--")[2].casefold()
    return parts[-1].casefold()
