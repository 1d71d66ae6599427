"""What became of mutants: label ("before", "after") -> key of a mutant -> outcome, in one file."""

import json

from mutant_tables import ROOT

FILE = ROOT / "benchmarks/results/mutants.json"
NOTICED, SURVIVED, ABSENT = "noticed", "survived", "not there"


def read_outcomes(label: str) -> dict[str, str]:
    """Return the outcomes that were kept under a label, by the mutants' keys."""
    return _read().get(label, {})


def write_outcomes(label: str, outcomes: dict[str, str]) -> None:
    """Keep the outcomes of a label, and leave those of others as they are."""
    kept = _read() | {label: dict(sorted(outcomes.items()))}
    unfinished = FILE.with_suffix(".new")  # a run that is stopped here leaves the old outcomes
    unfinished.write_text(json.dumps(kept, indent=1) + "\n")
    unfinished.replace(FILE)


def _read() -> dict[str, dict[str, str]]:
    return json.loads(FILE.read_text()) if FILE.is_file() else {}
