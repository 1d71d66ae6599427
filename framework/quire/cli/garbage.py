"""Settings of the garbage collector for a process that serves."""

import gc

YOUNGEST = 10_000  # objects made before the youngest are looked at; 700 is a request's


def settle() -> None:
    """Leave all objects of the start-up out of later collections, and collect less often.

    A full collection of a process that has loaded a model takes a fifth of a second, in which
    nothing responds; the collections of the youngest objects take a tenth of the time of a request.
    """
    gc.freeze()
    gc.set_threshold(YOUNGEST, *gc.get_threshold()[1:])
