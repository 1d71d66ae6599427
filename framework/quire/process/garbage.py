"""Garbage collection in a process of quire while it starts, and while it serves.

What a process imports stays alive until its end, and is a million objects with torch. The collector
looks at them again and again while they are made: a fifth of the time of the start. So it pauses
until the code is imported, and leaves it out from then on.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNGEST = 10_000  # objects made before the youngest are looked at; 700 is a request's


def pause_collections() -> None:
    """Collect no garbage from now on; to be called before a process imports its code."""
    gc.disable()


@contextmanager
def paused_collections() -> Iterator[None]:
    """Collect no garbage inside, until `leave_out_code` or `settle` is called."""
    pause_collections()
    try:
        yield
    finally:
        gc.enable()


def leave_out_code() -> None:
    """Collect garbage again, but not what exists now; to be called once all code is imported."""
    gc.freeze()
    gc.enable()


def leave_out_engine() -> None:
    """Collect the garbage of the start, and leave out what remains: weights, tables and parts."""
    gc.collect()
    gc.freeze()


def settle() -> None:
    """Leave all objects of the start-up out of later collections, and collect less often.

    A full collection of a process that has loaded a model takes a fifth of a second, in which
    nothing responds; the collections of the youngest objects take a tenth of the time of a request.
    """
    leave_out_code()
    gc.set_threshold(YOUNGEST, *gc.get_threshold()[1:])
