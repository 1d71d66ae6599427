"""A contest: trials, loading of the engines, rounds in turn, and ratios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint_files import make_checkpoint, make_gguf, num_params
from configurations import AGAIN, VLLM_CACHE_GIB
from contests import LOAD_S, Bench, Contest, Rival
from engine_process import Configuration, EngineFailedError, EngineProcess
from figures import agreement, first_tokens, rates, ratios, start_differently
from instruction_limits import VLLM_LIBRARIES, refuse_other_builds
from trials import Trials, log_progress
from turns import take_turns

from quire.machine.free_memory import free_host_bytes


class Replaced(list[Any]):
    """A list that replaces the previous one in the results; other lists are appended."""


@dataclass(frozen=True, slots=True)
class Match:
    """A peer's best configuration for a figure."""

    rival: Rival
    figure: str
    configuration: Configuration


def run_contest(contest: Contest, bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield results piece by piece: trials, loading, every round, and the ratios so far."""
    contest = contest.quick() if bench.is_quick else contest
    present = [rival for rival in contest.rivals if rival.engine in bench.pythons]
    absent = sorted({rival.engine for rival in contest.rivals if rival not in present})
    yield {"load": contest.load, "absent": absent, "with_trials": bench.with_trials}
    folder = make_checkpoint(bench.folder, contest.shape)
    kinds = [rival.candidates.first.options.get("weights") for rival in present]
    if "llama.cpp" in {rival.engine for rival in present}:
        make_gguf(folder, bench.pythons["llama.cpp"], [k for k in kinds if k not in (None, "BF16")])
    matches: list[Match] = []
    records: list[dict[str, Any]] = []
    for rival in present:
        trials = Trials(rival, contest, bench, folder)
        for tried in trials.run():
            yield {"trials": Replaced([*records, *tried])}
        records += trials.records
        matches += [
            Match(rival, figure, configuration) for figure, configuration in trials.best.items()
        ]
    yield from _race(contest, bench, folder, matches)


def _race(
    contest: Contest, bench: Bench, folder: Path, matches: Sequence[Match]
) -> Iterator[dict[str, Any]]:
    peers = {match.configuration.label: match.configuration for match in matches}
    with ExitStack() as stack:
        engines = _Engines(contest, bench, folder, stack)
        for configuration in (*contest.ours, *peers.values()):
            yield engines.admit(configuration)
        if contest.ours[0].label not in engines.labels:
            raise EngineFailedError(f"{contest.ours[0].label} could not be loaded")
        rounds: list[dict[str, Any]] = []
        for each in take_turns(engines.labels, bench.pairs, engines.turn):
            rounds.append(each)
            shown = (
                f"{label} {found[contest.figures[0]]:.1f}"
                for label, found in each["figures"].items()
            )
            log_progress(f"round {len(rounds)}: {', '.join(shown)}")
            failed = [f"in round {len(rounds)}: {what}" for what in each["failed"].values()]
            yield {"rounds": [each], "failed": failed, **_summary(contest, rounds, matches)}


def _summary(
    contest: Contest, rounds: Sequence[Mapping[str, Any]], matches: Sequence[Match]
) -> dict[str, Any]:
    labels = list(dict.fromkeys(label for each in rounds for label in each["figures"]))
    found = [
        ratio | {"rival": match.rival.name}
        for match in matches
        for configuration in match.rival.ours
        if (ratio := ratios(rounds, configuration.label, match.configuration.label, match.figure))
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


class _Engines:
    """Loaded engines, stopped until their turn; without enough memory, loaded for each turn."""

    def __init__(self, contest: Contest, bench: Bench, folder: Path, stack: ExitStack) -> None:
        self._contest, self._bench, self._folder, self._stack = contest, bench, folder, stack
        self._stopped: dict[str, EngineProcess] = {}
        self._configurations: dict[str, Configuration] = {}
        self._reference: tuple[str, list[list[int]]] | None = None

    @property
    def labels(self) -> list[str]:
        """Labels of all admitted engines."""
        return list(self._configurations)

    def admit(self, configuration: Configuration) -> dict[str, Any]:
        """Load an engine, run it once, and describe it; an engine that fails is left out.

        The first engine that keeps the checkpoint's weights is the reference for the completions
        of the others: quire, unless that fails.
        """
        process = self._process(configuration)
        try:
            loaded, completions = self._prepare(process)
        except EngineFailedError as error:
            process.close()
            log_progress(str(error))
            return {"failed": [str(error)]}
        process.pause()
        self._stopped[configuration.label] = process
        self._stack.callback(process.close)
        self._configurations[configuration.label] = configuration
        if self._reference is None and configuration.keeps_weights:
            self._reference = (configuration.label, completions)
        libraries = process.libraries(VLLM_LIBRARIES)
        about = {
            "label": configuration.label,
            "configuration": configuration.as_dict(),
            "libraries": libraries,
        }
        log_progress(f"{configuration.label} is loaded, {loaded['process_s']:.1f} s")
        return {"engines": [about | loaded | self._compared(configuration, completions)]}

    def turn(self, label: str) -> dict[str, float]:
        """Run one engine while the others are stopped; an engine that fails is closed."""
        if label not in self._stopped:
            with self._process(self._configurations[label]) as process:
                self._prepare(process)
                return self._contest.work(process)
        process = self._stopped[label]
        process.resume()
        try:
            found = self._contest.work(process)
        except EngineFailedError:
            self._stopped.pop(label).close()
            raise
        process.pause()
        return found

    def _compared(
        self, configuration: Configuration, completions: list[list[int]]
    ) -> dict[str, Any]:
        if self._reference is None:
            return {}
        name, right = self._reference
        return {
            "reference": name,
            "equal_tokens": agreement(right, completions),
            "first_tokens": first_tokens(right, completions),
            "disagrees": configuration.keeps_weights and start_differently(right, completions),
        }

    def _process(self, configuration: Configuration) -> EngineProcess:
        while self._stopped and free_host_bytes() < self._wanted_bytes(configuration):
            label, process = self._stopped.popitem()
            log_progress(
                f"{label} is closed for lack of memory, and loaded again for each of its turns"
            )
            process.close()
        return EngineProcess(
            configuration, self._bench.pythons[configuration.engine], self._bench.isa
        )

    def _prepare(self, process: EngineProcess) -> tuple[dict[str, Any], list[list[int]]]:
        loaded = process.load(self._folder, LOAD_S)
        refuse_other_builds(process, loaded, self._bench.isa)
        return loaded, self._contest.completions(process)

    def _wanted_bytes(self, configuration: Configuration) -> int:
        cache = VLLM_CACHE_GIB << 30 if configuration.engine == "vllm" else 0
        return (
            int(1.3 * configuration.weight_bytes * num_params(self._contest.shape))
            + (1 << 30)
            + cache
        )
