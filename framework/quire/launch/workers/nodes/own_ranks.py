"""Ranks of an agent: as given, or by the variables of its launcher; and their name for people."""

from collections.abc import Mapping

from quire.errors import SettingsError

# Index of this process among those that the launcher has started, or of its machine if the
# launcher starts one process on each. A launcher may run inside one that follows here: torchrun or
# mpirun in a job of SLURM.
INDEX_VARIABLES = {
    "RANK": "torchrun",
    "OMPI_COMM_WORLD_RANK": "Open MPI",
    "PMI_RANK": "MPICH",
    "SLURM_PROCID": "SLURM",
    "LWS_WORKER_INDEX": "Kubernetes LeaderWorkerSet",
}


def own_ranks(first: int | None, count: int, environment: Mapping[str, str]) -> range:
    """Return the ranks that an agent starts.

    Args:
        first: First rank as given; None: the launcher's index times `count`.
        count: Number of ranks.
        environment: Variables of the process.

    Raises:
        SettingsError: There is no rank.
    """
    if count < 1:
        raise SettingsError(f"--count must be at least 1, got {count}")
    if first is None:
        first = _launcher_index(environment) * count
    if first < 0:
        raise SettingsError(f"--rank must be at least 0, got {first}")
    return range(first, first + count)


def ranks_text(ranks: range) -> str:
    """Return consecutive ranks for people."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def _launcher_index(environment: Mapping[str, str]) -> int:
    found = [name for name in INDEX_VARIABLES if environment.get(name)]
    if not found:
        raise SettingsError(
            "the rank is not known: give --rank, or start the process by a launcher that sets "
            f"one of {', '.join(INDEX_VARIABLES)}"
        )
    name, value = found[0], environment[found[0]]
    if not value.isdecimal():
        raise SettingsError(f"{name} of {INDEX_VARIABLES[name]} is no number: {value!r}")
    return int(value)
