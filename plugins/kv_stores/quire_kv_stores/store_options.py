"""Options of the host-memory tier: `--kv-store-options max_bytes=8GiB`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from quire.errors import SettingsError
from quire.interfaces.kv_cache import KVPlan
from quire.interfaces.kv_transfer import cross_group_block_bytes
from quire.machine.byte_size import parse_byte_size

MAX_BYTES = 2**50  # more than any machine has, and small enough for 64-bit products


@dataclass(frozen=True, slots=True)
class HostMemoryOptions:
    """Options by the names that users write.

    Attributes:
        max_bytes: Size of the memory for stored blocks, in the host process of each device.
        step_bytes: Largest number of bytes that one step copies; the rest waits for the next step.
            A step copies at least one whole cross-group block.
    """

    max_bytes: int = 4 * 2**30
    step_bytes: int = 64 * 2**20

    def num_slots(self, plan: KVPlan) -> int:
        """Return the number of cross-group blocks that fit; 0 for a model without a KV cache.

        Raises:
            SettingsError: `max_bytes` is too small for one.
        """
        needed = cross_group_block_bytes(plan)
        if not needed:
            return 0
        if needed > self.max_bytes:
            raise SettingsError(
                f"KV store host_memory: max_bytes is {self.max_bytes:,}, but one block of "
                f"all layers needs {needed:,} bytes; raise max_bytes, or choose a smaller "
                "block_size"
            )
        return self.max_bytes // needed


def read_options(given: Mapping[str, str]) -> HostMemoryOptions:
    """Return the given options, parsed from text, with defaults for the others.

    Raises:
        SettingsError: An option is unknown, or not a size.
    """
    known = [field.name for field in fields(HostMemoryOptions)]
    for key in given:
        if key not in known:
            raise SettingsError(
                f"KV store host_memory has no option {key!r} (known: {', '.join(known)})"
            )
    return HostMemoryOptions(**{key: _size(key, text) for key, text in given.items()})


def _size(key: str, text: str) -> int:
    """Return an option in bytes, checked to be positive and at most `MAX_BYTES`."""
    num_bytes = parse_byte_size(text, f"KV store host_memory: {key}")
    if not 0 < num_bytes <= MAX_BYTES:
        raise SettingsError(
            f"KV store host_memory: {key} must be from 1 to {MAX_BYTES:,} bytes, got {text!r}"
        )
    return num_bytes
