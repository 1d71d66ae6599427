"""Selection of a peer's fastest configuration by short runs of the real load, in turn.

The best configuration so far is stopped while the next one is tried. A much slower one is dropped
after its first run; otherwise both run once more in turn, and the better run of each counts. If a
load has several figures, each has its own best configuration. A configuration with the checkpoint's
weights whose completions start differently from those of the first one does not compute the same
model, and is rejected.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comparisons import LOAD_S, RUN_S, Bench, Comparison, Peer
from engine_process import Configuration, EngineFailedError, EngineProcess
from figures import start_differently
from instruction_limits import refuse_other_builds

HOPELESS = 1.25  # times slower than the best


@dataclass(slots=True)
class Trial:
    """A loaded configuration, and the figures of its runs."""

    configuration: Configuration
    process: EngineProcess
    process_s: float
    samples: list[dict[str, float]] = field(default_factory=list)

    def best(self, figure: str) -> float:
        """Return the best figure of its runs."""
        return max(sample[figure] for sample in self.samples)


class Trials:
    """The trials of one peer for one load.

    Attributes:
        best: Fastest configuration, by figure; empty if none works.
        records: Entries of the report, one per configuration; "is_open" is set if it may be the
            fastest and was not tried to the end.
    """

    def __init__(self, peer: Peer, comparison: Comparison, bench: Bench, folder: Path) -> None:
        self.best: dict[str, Configuration] = {}
        self.records: list[dict[str, Any]] = []
        self._peer, self._comparison, self._bench, self._folder = peer, comparison, bench, folder
        self._loaded_ones: list[Trial] = []
        self._completions: list[list[int]] | None = None  # of the first configuration

    def run(self) -> Iterator[Sequence[dict[str, Any]]]:
        """Try all configurations while there is time; yields all records after each."""
        if len(self._peer.candidates.tried) == 1:
            self.best = dict.fromkeys(self._comparison.figures, self._peer.candidates.first)
            self.records += self._not_tried()
            yield self.records
            return
        if not self._bench.with_trials:
            configuration = self._peer.candidates.first
            self.best = dict.fromkeys(self._comparison.figures, configuration)
            why = {"not_tried": "taken without a trial", "is_open": True}
            self.records.append(self._record(configuration) | why)
            yield self.records
            return
        end = time.monotonic() + self._peer.trial_s
        with ExitStack() as stack:
            for variant in self._peer.candidates.tried:
                configuration = variant(self._leader)
                self.records.append(self._record(configuration))
                if time.monotonic() < end:
                    self.records[-1] |= self._try(configuration, stack)
                else:
                    late = f"not tried: the {self._peer.trial_s:.0f} s for trials were over"
                    self.records[-1] |= {"not_tried": late, "is_open": True}
                yield self.records
        self.records += self._not_tried()
        yield self.records

    def _not_tried(self) -> list[dict[str, Any]]:
        about = {"rival": self._peer.name, "engine": self._peer.engine}
        return [
            about | {"name": name, "not_tried": why}
            for name, why in self._peer.candidates.not_tried.items()
        ]

    def _record(self, configuration: Configuration) -> dict[str, Any]:
        return {"rival": self._peer.name} | configuration.as_dict()

    @property
    def _leader(self) -> Configuration:
        return self.best.get(self._comparison.figures[0], self._peer.candidates.first)

    def _try(self, configuration: Configuration, stack: ExitStack) -> dict[str, Any]:
        """Return the samples of a configuration, or its error; close all but the best."""
        process = stack.enter_context(
            EngineProcess(configuration, self._bench.pythons[configuration.engine], self._bench.isa)
        )
        try:
            trial = self._loaded(configuration, process)
            trial.samples.append(self._comparison.work(process))
            if not self._is_hopeless(trial):
                process.pause()
                self._repeat_the_others()
                self._repeat(trial)
        except EngineFailedError as error:
            process.close()
            log_progress(f"trial: {error}")
            self._keep_the_best()
            return {"error": str(error)}
        self._loaded_ones.append(trial)
        self._keep_the_best()
        figure = self._comparison.figures[0]
        log_progress(f"trial of {configuration.label}: {trial.best(figure):.1f} tok/s")
        return {"samples": trial.samples, "process_s": trial.process_s}

    def _loaded(self, configuration: Configuration, process: EngineProcess) -> Trial:
        loaded = process.load(self._folder, LOAD_S)
        refuse_other_builds(process, loaded, self._bench.isa)
        if self._comparison.repeats > 1:  # short enough for a whole run: some compile by length
            completions = self._comparison.completions(process)
        else:
            _, completions = process.run(self._comparison.prompts, 2, 1, RUN_S)
        if self._completions is None:
            self._completions = completions
        elif configuration.keeps_weights and start_differently(self._completions, completions):
            raise EngineFailedError(
                f"{configuration.label}: completions start differently from those of the first "
                "configuration"
            )
        return Trial(configuration, process, loaded["process_s"])

    def _is_hopeless(self, trial: Trial) -> bool:
        return all(
            any(HOPELESS * trial.best(figure) < other.best(figure) for other in self._loaded_ones)
            for figure in self._comparison.figures
        )

    def _repeat_the_others(self) -> None:
        """Run the best ones so far once more; one that fails is dropped.

        It may be the fastest nevertheless, so its record is open.
        """
        for other in tuple(self._loaded_ones):
            try:
                self._repeat(other)
            except EngineFailedError as error:
                log_progress(f"trial: {error}")
                other.process.close()
                self._loaded_ones.remove(other)
                self._record_of(other.configuration).update({"error": str(error), "is_open": True})

    def _record_of(self, configuration: Configuration) -> dict[str, Any]:
        return next(record for record in self.records if record["name"] == configuration.name)

    def _repeat(self, trial: Trial) -> None:
        trial.process.resume()
        trial.samples.append(self._comparison.work(trial.process))
        trial.process.pause()

    def _keep_the_best(self) -> None:
        best = {
            figure: max(self._loaded_ones, key=lambda each: each.best(figure))
            for figure in (self._comparison.figures if self._loaded_ones else ())
        }
        self.best = {figure: trial.configuration for figure, trial in best.items()}
        kept = {trial.configuration.label for trial in best.values()}
        for trial in self._loaded_ones:
            if trial.configuration.label in kept:
                trial.process.pause()
            else:
                trial.process.close()
        self._loaded_ones = [each for each in self._loaded_ones if each.configuration.label in kept]


def log_progress(line: str) -> None:
    """Print a line about the progress of the run."""
    print(f"  {line}", file=sys.stderr, flush=True)
