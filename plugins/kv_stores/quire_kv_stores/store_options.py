"""What the user may say of the host-memory tier: `--kv-store-options max_bytes=8GiB`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.kv_transfer import cross_group_block_bytes
from quire.machine.byte_size import parse_byte_size

MAX_BYTES = 2**50  # no machine has more, and every product with it fits 64 bits


@dataclass(frozen=True, slots=True)
class HostMemoryOptions:
    """The options, by the names that users write.

    Attributes:
        max_bytes: Memory for stored columns, on each device's host process.
        step_bytes: What one step copies, at most; the rest waits for the next. A column is moved
            whole, so a step moves at least one.
    """

    max_bytes: int = 4 * 2**30
    step_bytes: int = 64 * 2**20

    def num_slots(self, plan: KVPlan) -> int:
        """Return how many columns fit; 0 for a model that keeps nothing.

        Raises:
            SettingsError: Not even one fits.
        """
        needed = cross_group_block_bytes(plan)
        if not needed:
            return 0
        if needed > self.max_bytes:
            raise SettingsError(
                f"KV store host_memory: max_bytes is {self.max_bytes:,}, and one block of every "
                f"layer together has {needed:,} bytes; raise max_bytes, or choose a smaller "
                "block_size"
            )
        return self.max_bytes // needed


def read_options(given: Mapping[str, str]) -> HostMemoryOptions:
    """Return the options that were given as text, and the defaults of the others.

    Raises:
        SettingsError: One is unknown, or is no size.
    """
    known = [field.name for field in fields(HostMemoryOptions)]
    for key in given:
        if key not in known:
            raise SettingsError(
                f"KV store host_memory has no option {key!r} (known: {', '.join(known)})"
            )
    return HostMemoryOptions(**{key: _size(key, text) for key, text in given.items()})


def _size(key: str, text: str) -> int:
    """Return the bytes of an option, in the bounds that a machine sets."""
    num_bytes = parse_byte_size(text, f"KV store host_memory: {key}")
    if not 0 < num_bytes <= MAX_BYTES:
        raise SettingsError(
            f"KV store host_memory: {key} must be from 1 to {MAX_BYTES:,} bytes, got {text!r}"
        )
    return num_bytes
