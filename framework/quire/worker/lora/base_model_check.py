"""Check that an adapter was made for the served model, by comparing model names.

An adapter names its base model by a hub id, or by a folder on the machine that trained it. So only
the last part of a name counts, without case: `/data/Qwen3-0.6B` is `Qwen/Qwen3-0.6B`.
"""

import logging
import re
from collections.abc import Sequence

from quire.compose.checkpoint import Checkpoint
from quire.errors import AdapterError
from quire.messages import AdapterRef

HUB_CACHE = "models--"  # a folder of the hub's cache: models--OWNER--NAME/snapshots/COMMIT
UNNAMED = frozenset({"", ".", ".."})

logger = logging.getLogger(__name__)


class BaseModel:
    """The served model, as the base model of adapters.

    Args:
        names: Names of the model.
        is_strict: Refuse adapters made for another model; otherwise a warning is logged.
    """

    def __init__(self, names: Sequence[str], *, is_strict: bool) -> None:
        self._names = {last_name(name): name for name in reversed(names)}  # the first one is shown
        self._is_strict = is_strict
        self._warned: set[AdapterRef] = set()

    def check(self, ref: AdapterRef, base_model: str | None) -> None:
        """Compare the base model of an adapter with the served one; warn once per adapter.

        Raises:
            AdapterError: The adapter was made for another model, and `is_strict` is set.
        """
        wanted = last_name(base_model or "")
        if wanted in UNNAMED or wanted in self._names:
            return
        served = ", ".join(repr(name) for name in self._names.values())
        made_for = f"adapter {ref.name!r} was made for the base model {base_model!r}"
        if self._is_strict:
            raise AdapterError(
                f"{made_for}, but the served model is {served}; leave out --strict-adapters to "
                "use it nevertheless"
            )
        if ref not in self._warned:
            self._warned.add(ref)
            logger.warning(
                "%s, but the served model is %s: if they differ, its completions are wrong; "
                "--strict-adapters refuses such adapters",
                made_for,
                served,
            )


def names_of(checkpoint: Checkpoint) -> list[str]:
    """Return the names of a model: given by the user, of its folder, and in its config."""
    own = checkpoint.config.get("_name_or_path")
    names = [checkpoint.name, str(checkpoint.folder), own if isinstance(own, str) else ""]
    return [name for name in names if last_name(name) not in UNNAMED]


def last_name(name: str) -> str:
    """Return the last part of a hub id or folder, in lower case, for comparison."""
    parts = [part for part in re.split(r"[/\\]", name.strip()) if part] or [""]
    for part in parts:
        if part.startswith(HUB_CACHE):
            return part.rpartition("--")[2].casefold()
    return parts[-1].casefold()
