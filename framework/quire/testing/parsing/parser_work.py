"""Work of a parser, counted without a clock: lines of Python executed, and bytes copied.

Both counts are needed. A loop in Python executes lines. A text that is held back and gets longer
with every delta is copied each time, which is a single call. Small allocations are not counted.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

SMALL_BYTES = 768  # frames, generators and events are smaller


@dataclass(frozen=True, slots=True)
class Work:
    """What a call has done.

    Attributes:
        num_lines: Number of executed lines, a loop's each time.
        num_copied_bytes: Size of all new objects that are not small.
    """

    num_lines: int
    num_copied_bytes: int


class EndlessWorkError(Exception):
    """A call executes more lines than it may."""


def work_of(call: Callable[[], object], max_lines: int | None = None) -> Work:
    """Return the work of a call.

    Raises:
        EndlessWorkError: It executes more than `max_lines`.
    """
    num_lines = num_copied = held = 0

    def trace(_frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any]:
        nonlocal num_lines, num_copied, held
        now, peak = tracemalloc.get_traced_memory()
        if peak - held > SMALL_BYTES:
            num_copied += peak - held
        held = now
        num_lines += 1
        if num_lines == max_lines:
            raise EndlessWorkError(f"{max_lines} lines were executed")
        tracemalloc.reset_peak()
        return trace

    before, was_tracing = sys.gettrace(), tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    gc.disable()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
        if not was_tracing:
            tracemalloc.stop()
    return Work(num_lines, num_copied)


def is_linear(small: Work, large: Work, num_characters: int) -> bool:
    """Whether work on four times the text is four times the work, up to what lists add in bytes.

    Args:
        small: Work on a text.
        large: Work on one that is four times as long.
        num_characters: Length of the longer text.
    """
    return (
        large.num_lines <= 5 * small.num_lines + 200
        and large.num_copied_bytes <= 6 * small.num_copied_bytes + 48 * num_characters
    )
