"""The engines of a contest, from their loading to the ratios: who takes part, and who drops out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint_files import make_checkpoint, make_gguf, num_params
from contests import LOAD_S, Bench, Contest, Rival
from engine_process import Configuration, EngineFailedError, EngineProcess
from figures import agreement, begin_unlike, first_tokens, rates, ratios
from instruction_limits import VLLM_LIBRARIES, refuse_other_builds
from trials import Trials, tell
from turns import take_turns
from ways import AGAIN, VLLM_CACHE_GIB

from quire.machine.free_memory import free_host_bytes


class Replaced(list[Any]):
    """A list that takes the place of the one told before, where others are added to it."""


@dataclass(frozen=True, slots=True)
class Match:
    """A peer's best way for a figure."""

    rival: Rival
    figure: str
    way: Configuration


def run_contest(contest: Contest, bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield what is found, piece by piece: trials, loading, every round, and the ratios so far."""
    contest = contest.quick() if bench.is_quick else contest
    present = [rival for rival in contest.rivals if rival.engine in bench.pythons]
    absent = sorted({rival.engine for rival in contest.rivals if rival not in present})
    yield {"load": contest.load, "absent": absent, "with_trials": bench.with_trials}
    folder = make_checkpoint(bench.folder, contest.shape)
    kinds = [rival.ways.first.options.get("weights") for rival in present]
    if "llama.cpp" in {rival.engine for rival in present}:
        make_gguf(folder, bench.pythons["llama.cpp"], [k for k in kinds if k not in (None, "BF16")])
    matches: list[Match] = []
    records: list[dict[str, Any]] = []
    for rival in present:
        trials = Trials(rival, contest, bench, folder)
        for told in trials.run():
            yield {"trials": Replaced([*records, *told])}
        records += trials.records
        matches += [Match(rival, figure, way) for figure, way in trials.best.items()]
    yield from _race(contest, bench, folder, matches)


def _race(
    contest: Contest, bench: Bench, folder: Path, matches: Sequence[Match]
) -> Iterator[dict[str, Any]]:
    peers = {match.way.label: match.way for match in matches}
    with ExitStack() as stack:
        stable = _Stable(contest, bench, folder, stack)
        for way in (*contest.ours, *peers.values()):
            yield stable.admit(way)
        if contest.ours[0].label not in stable.labels:
            raise EngineFailedError(f"{contest.ours[0].label} could not be loaded")
        rounds: list[dict[str, Any]] = []
        for each in take_turns(stable.labels, bench.pairs, stable.turn):
            rounds.append(each)
            told = (
                f"{label} {found[contest.figures[0]]:.1f}"
                for label, found in each["figures"].items()
            )
            tell(f"round {len(rounds)}: {', '.join(told)}")
            failed = [f"in round {len(rounds)}: {what}" for what in each["failed"].values()]
            yield {"rounds": [each], "failed": failed, **_summary(contest, rounds, matches)}


def _summary(
    contest: Contest, rounds: Sequence[Mapping[str, Any]], matches: Sequence[Match]
) -> dict[str, Any]:
    labels = list(dict.fromkeys(label for each in rounds for label in each["figures"]))
    found = [
        ratio | {"rival": match.rival.name}
        for match in matches
        for way in match.rival.ours
        if (ratio := ratios(rounds, way.label, match.way.label, match.figure))
    ]
    ours = contest.ours[0].label
    noise = [ratios(rounds, ours, AGAIN.label, figure) for figure in contest.figures]
    return {
        "rates": {
            label: {figure: rates(rounds, label, figure) for figure in contest.figures}
            for label in labels
        },
        "ratios": Replaced(found),
        "noise": Replaced([ratio for ratio in noise if ratio]),
    }


class _Stable:
    """Where engines stand still until it is their turn, or are loaded for each turn if need be."""

    def __init__(self, contest: Contest, bench: Bench, folder: Path, stack: ExitStack) -> None:
        self._contest, self._bench, self._folder, self._stack = contest, bench, folder, stack
        self._standing: dict[str, EngineProcess] = {}
        self._ways: dict[str, Configuration] = {}
        self._reference: tuple[str, list[list[int]]] | None = None

    @property
    def labels(self) -> list[str]:
        """Everyone who was admitted."""
        return list(self._ways)

    def admit(self, way: Configuration) -> dict[str, Any]:
        """Load an engine, let it run once, and say what it is; one that cannot stays out.

        The first one that keeps the checkpoint's weights is what the others' answers are compared
        with: quire, unless that fails.
        """
        process = self._process(way)
        try:
            loaded, answers = self._prepare(process)
        except EngineFailedError as error:
            process.close()
            tell(str(error))
            return {"failed": [str(error)]}
        process.pause()
        self._standing[way.label] = process
        self._stack.callback(process.close)
        self._ways[way.label] = way
        if self._reference is None and way.keeps_weights:
            self._reference = (way.label, answers)
        libraries = process.libraries(VLLM_LIBRARIES)
        about = {"label": way.label, "configuration": way.as_dict(), "libraries": libraries}
        tell(f"{way.label} is loaded, {loaded['process_s']:.1f} s")
        return {"engines": [about | loaded | self._compared(way, answers)]}

    def turn(self, label: str) -> dict[str, float]:
        """Let one engine run while the others stand still; one that fails is ended."""
        if label not in self._standing:
            with self._process(self._ways[label]) as process:
                self._prepare(process)
                return self._contest.work(process)
        process = self._standing[label]
        process.resume()
        try:
            found = self._contest.work(process)
        except EngineFailedError:
            self._standing.pop(label).close()
            raise
        process.pause()
        return found

    def _compared(self, way: Configuration, answers: list[list[int]]) -> dict[str, Any]:
        if self._reference is None:
            return {}
        name, right = self._reference
        return {
            "reference": name,
            "equal_tokens": agreement(right, answers),
            "first_tokens": first_tokens(right, answers),
            "disagrees": way.keeps_weights and begin_unlike(right, answers),
        }

    def _process(self, way: Configuration) -> EngineProcess:
        while self._standing and free_host_bytes() < self._wanted_bytes(way):
            label, process = self._standing.popitem()
            tell(f"{label} makes room; it is loaded anew for each of its turns")
            process.close()
        return EngineProcess(way, self._bench.pythons[way.engine], self._bench.isa)

    def _prepare(self, process: EngineProcess) -> tuple[dict[str, Any], list[list[int]]]:
        loaded = process.load(self._folder, LOAD_S)
        refuse_other_builds(process, loaded, self._bench.isa)
        return loaded, self._contest.answers(process)

    def _wanted_bytes(self, way: Configuration) -> int:
        cache = VLLM_CACHE_GIB << 30 if way.engine == "vllm" else 0
        return int(1.3 * way.weight_bytes * num_params(self._contest.shape)) + (1 << 30) + cache
