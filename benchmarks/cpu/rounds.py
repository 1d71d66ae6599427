"""Run of a comparison: trials, loading of the engines, rounds in turn, ratios, and shares.

In the results a ratio has the name of its peer (`Peer.name`) as `rival`, and so has a trial: the
committed results have this key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint_files import make_checkpoint, make_gguf, make_openvino, make_vllm, num_params
from comparisons import LOAD_S, Bench, Comparison, Peer
from configurations import AGAIN, VLLM_CACHE_GIB
from engine_process import Configuration, EngineFailedError, EngineProcess
from figures import agreement, first_tokens, rates, ratios, shares, start_differently
from instruction_limits import VLLM_LIBRARIES, cannot_be_limited, refuse_other_builds
from memory_turns import MEMORY, read_memory
from trials import Trials, log_progress
from turns import take_turns

from quire.machine.free_memory import free_host_bytes

MADE = {"vllm": make_vllm, "openvino": make_openvino, "llama.cpp": make_gguf}  # of a checkpoint


class Replaced(list[Any]):
    """A list that replaces the previous one in the results; other lists are appended."""


@dataclass(frozen=True, slots=True)
class FastestConfiguration:
    """A peer's fastest configuration for a figure."""

    peer: Peer
    figure: str
    configuration: Configuration


def run_comparison(comparison: Comparison, bench: Bench) -> Iterator[dict[str, Any]]:
    """Yield results piece by piece: trials, loading, every round, and the ratios so far."""
    comparison = comparison.quick() if bench.is_quick else comparison
    available = [
        peer
        for peer in comparison.peers
        if peer.engine in bench.pythons and not cannot_be_limited(peer.engine, bench.isa)
    ]
    absent = sorted({peer.engine for peer in comparison.peers if peer not in available})
    yield {"load": comparison.load, "absent": absent, "with_trials": bench.with_trials}
    folder = make_checkpoint(bench.folder, comparison.shape)
    for engine, make in MADE.items():
        first = [peer.candidates.first for peer in available if peer.engine == engine]
        kinds = [each.options["weights"] for each in first if "weights" in each.options]
        if kinds:
            make(folder, bench.pythons[engine], kinds)
    fastest: list[FastestConfiguration] = []
    records: list[dict[str, Any]] = []
    for peer in available:
        trials = Trials(peer, comparison, bench, folder)
        for tried in trials.run():
            yield {"trials": Replaced([*records, *tried])}
        records += trials.records
        fastest += [
            FastestConfiguration(peer, figure, configuration)
            for figure, configuration in trials.best.items()
        ]
    yield from _run_rounds(comparison, bench, folder, fastest)


def _run_rounds(
    comparison: Comparison, bench: Bench, folder: Path, fastest: Sequence[FastestConfiguration]
) -> Iterator[dict[str, Any]]:
    peers = {best.configuration.label: best.configuration for best in fastest}
    with ExitStack() as stack:
        engines = _Engines(comparison, bench, folder, stack)
        for configuration in (*comparison.ours, *peers.values()):
            yield engines.admit(configuration)
        if comparison.ours[0].label not in engines.labels:
            raise EngineFailedError(f"{comparison.ours[0].label} could not be loaded")
        rounds: list[dict[str, Any]] = []
        labels = [*engines.labels, *([MEMORY] if comparison.measures_memory else [])]
        for each in take_turns(labels, bench.pairs, engines.turn):
            rounds.append(each)
            shown = (
                f"{label} {found[comparison.figures[0]]:.1f}"
                for label, found in each["figures"].items()
                if label != MEMORY
            )
            log_progress(f"round {len(rounds)}: {', '.join(shown)}")
            failed = [f"in round {len(rounds)}: {what}" for what in each["failed"].values()]
            yield {
                "rounds": [each],
                "failed": failed,
                **_summary(comparison, rounds, fastest),
                **_memory_summary(rounds, engines.weight_bytes),
            }


def _summary(
    comparison: Comparison,
    rounds: Sequence[Mapping[str, Any]],
    fastest: Sequence[FastestConfiguration],
) -> dict[str, Any]:
    seen = dict.fromkeys(label for each in rounds for label in each["figures"])
    labels = [label for label in seen if label != MEMORY]
    found = [
        ratio | {"rival": best.peer.name}
        for best in fastest
        for configuration in best.peer.ours
        if (ratio := ratios(rounds, configuration.label, best.configuration.label, best.figure))
    ]
    ours = comparison.ours[0].label
    noise = [ratios(rounds, ours, AGAIN.label, figure) for figure in comparison.figures]
    return {
        "rates": {
            label: {figure: rates(rounds, label, figure) for figure in comparison.figures}
            for label in labels
        },
        "ratios": Replaced(found),
        "noise": Replaced([ratio for ratio in noise if ratio]),
    }


def _memory_summary(
    rounds: Sequence[Mapping[str, Any]], weight_bytes: Mapping[str, int]
) -> dict[str, Any]:
    """Return the read bandwidth, and the fraction of it that each engine's weights take."""
    bandwidth = rates(rounds, MEMORY, "bytes_per_s")
    if bandwidth is None:
        return {}
    found = {
        label: share
        for label, num_bytes in weight_bytes.items()
        if (share := shares(rounds, label, MEMORY, num_bytes))
    }
    return {"memory": {"bytes_per_s": bandwidth, "shares": found}}


class _Engines:
    """Loaded engines, stopped until their turn; without enough memory, loaded for each turn.

    Attributes:
        weight_bytes: Bytes of the weights that an output token needs, by label, where the engine
            reports them.
    """

    def __init__(
        self, comparison: Comparison, bench: Bench, folder: Path, stack: ExitStack
    ) -> None:
        self._comparison, self._bench, self._folder, self._stack = comparison, bench, folder, stack
        self._stopped: dict[str, EngineProcess] = {}
        self._configurations: dict[str, Configuration] = {}
        self._reference: tuple[str, list[list[int]]] | None = None
        self.weight_bytes: dict[str, int] = {}

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
        if "weight_bytes" in loaded:
            self.weight_bytes[configuration.label] = loaded["weight_bytes"]
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
        if label == MEMORY:
            return read_memory(self._bench)
        if label not in self._stopped:
            with self._process(self._configurations[label]) as process:
                self._prepare(process)
                return self._comparison.work(process)
        process = self._stopped[label]
        process.resume()
        try:
            found = self._comparison.work(process)
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
        return loaded, self._comparison.completions(process)

    def _wanted_bytes(self, configuration: Configuration) -> int:
        cache = VLLM_CACHE_GIB << 30 if configuration.engine == "vllm" else 0
        return int(1.3 * configuration.weight_bytes * num_params(self._folder)) + (1 << 30) + cache
