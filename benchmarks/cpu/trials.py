"""Which of a peer's ways to run is its fastest, by short runs of the real load, in turn.

The best way so far stands by while the next one is tried. One that is much slower is left after its
first run; with any other, both run once more in turn, and the better run of each counts. Where a
load has several figures, each has a best way of its own. A way whose answers begin unlike those of
the first one does not run the model, and is none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contests import LOAD_S, RUN_S, Bench, Contest, Rival
from engine_process import Configuration, EngineFailedError, EngineProcess
from figures import begin_unlike
from instruction_limits import refuse_other_builds

HOPELESS = 1.25  # times slower than the best


@dataclass(slots=True)
class Entrant:
    """A way that was loaded, and what its runs gave."""

    way: Configuration
    process: EngineProcess
    process_s: float
    samples: list[dict[str, float]] = field(default_factory=list)

    def best(self, figure: str) -> float:
        """Return the better of its runs."""
        return max(sample[figure] for sample in self.samples)


class Trials:
    """The trials of one peer for one load.

    Attributes:
        best: The way that is the fastest, by figure; empty if none works.
        records: What the report tells, a way each; "is_open" where it may be the best, untried.
    """

    def __init__(self, rival: Rival, contest: Contest, bench: Bench, folder: Path) -> None:
        self.best: dict[str, Configuration] = {}
        self.records: list[dict[str, Any]] = []
        self._rival, self._contest, self._bench, self._folder = rival, contest, bench, folder
        self._standing: list[Entrant] = []
        self._answers: list[list[int]] | None = None  # of the first way

    def run(self) -> Iterator[Sequence[dict[str, Any]]]:
        """Try all ways, as long as there is time; yields all records after each."""
        if not self._bench.with_trials:
            way = self._rival.ways.first
            self.best = dict.fromkeys(self._contest.figures, way)
            why = {"not_tried": "taken without a trial", "is_open": True}
            self.records.append(self._record(way) | why)
            yield self.records
            return
        end = time.monotonic() + self._rival.trial_s
        with ExitStack() as stack:
            for variant in self._rival.ways.tried:
                way = variant(self._leader)
                self.records.append(self._record(way))
                if time.monotonic() < end:
                    self.records[-1] |= self._try(way, stack)
                else:
                    late = f"not tried: the {self._rival.trial_s:.0f} s for trials were over"
                    self.records[-1] |= {"not_tried": late, "is_open": True}
                yield self.records
        about = {"rival": self._rival.name, "engine": self._rival.engine}
        for name, why in self._rival.ways.not_tried.items():
            self.records.append(about | {"name": name, "not_tried": why})
        yield self.records

    def _record(self, way: Configuration) -> dict[str, Any]:
        return {"rival": self._rival.name} | way.as_dict()

    @property
    def _leader(self) -> Configuration:
        return self.best.get(self._contest.figures[0], self._rival.ways.first)

    def _try(self, way: Configuration, stack: ExitStack) -> dict[str, Any]:
        """Return the samples of a way, or its error; ends those that are no longer the best."""
        process = stack.enter_context(
            EngineProcess(way, self._bench.pythons[way.engine], self._bench.isa)
        )
        try:
            entrant = self._loaded(way, process)
            entrant.samples.append(self._contest.work(process))
            if not self._is_hopeless(entrant):
                process.pause()
                self._let_the_others_run()
                self._once_more(entrant)
        except EngineFailedError as error:
            process.close()
            tell(f"trial: {error}")
            self._leave_the_best()
            return {"error": str(error)}
        self._standing.append(entrant)
        self._leave_the_best()
        figure = self._contest.figures[0]
        tell(f"trial of {way.label}: {entrant.best(figure):.1f} tok/s")
        return {"samples": entrant.samples, "process_s": entrant.process_s}

    def _loaded(self, way: Configuration, process: EngineProcess) -> Entrant:
        loaded = process.load(self._folder, LOAD_S)
        refuse_other_builds(process, loaded, self._bench.isa)
        if self._contest.repeats > 1:  # short enough to be run whole: some compile for each length
            answers = self._contest.answers(process)
        else:
            _, answers = process.run(self._contest.prompts, 2, 1, RUN_S)
        if self._answers is None:
            self._answers = answers
        elif begin_unlike(self._answers, answers):
            raise EngineFailedError(f"{way.label}: its answers begin unlike those of the first way")
        return Entrant(way, process, loaded["process_s"])

    def _is_hopeless(self, entrant: Entrant) -> bool:
        return all(
            any(HOPELESS * entrant.best(figure) < other.best(figure) for other in self._standing)
            for figure in self._contest.figures
        )

    def _let_the_others_run(self) -> None:
        """Once more, those that were the best so far; one that fails is no longer among them.

        It may be the best all the same, so that its record is open.
        """
        for other in tuple(self._standing):
            try:
                self._once_more(other)
            except EngineFailedError as error:
                tell(f"trial: {error}")
                other.process.close()
                self._standing.remove(other)
                self._record_of(other.way).update({"error": str(error), "is_open": True})

    def _record_of(self, way: Configuration) -> dict[str, Any]:
        return next(record for record in self.records if record["name"] == way.name)

    def _once_more(self, entrant: Entrant) -> None:
        entrant.process.resume()
        entrant.samples.append(self._contest.work(entrant.process))
        entrant.process.pause()

    def _leave_the_best(self) -> None:
        best = {
            figure: max(self._standing, key=lambda each: each.best(figure))
            for figure in (self._contest.figures if self._standing else ())
        }
        self.best = {figure: entrant.way for figure, entrant in best.items()}
        kept = {entrant.way.label for entrant in best.values()}
        for entrant in self._standing:
            if entrant.way.label in kept:
                entrant.process.pause()
            else:
                entrant.process.close()
        self._standing = [each for each in self._standing if each.way.label in kept]


def tell(line: str) -> None:
    """Say how far the run is."""
    print(f"  {line}", file=sys.stderr, flush=True)
