"""R7: the scheduler and the KV cache under random orders of events."""

import importlib.util
import logging
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from row import Limits, Measured

TESTS = Path(__file__).parents[2] / "tests"
MACHINE = TESTS / "framework" / "engine" / "test_engine_state.py"
LONG_RUN = TESTS / "framework" / "engine" / "long_run.py"
NUM_EXAMPLES = 200
MIN_RULES = 10_000


def scheduler_steps(limits: Limits) -> Measured:
    """Run the state machine of the tests, then trials of random events; a breach raises."""
    sys.path.insert(0, str(TESTS / "parts"))
    machine = _machine()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # stores that fail are part of the trials
    try:
        num_rules = machine.run_machine(machine.EngineMachine, NUM_EXAMPLES)
        counts = _random_events(limits.num_events)
    finally:
        logging.disable(level)
    before = re.search(r"([\d,]+) events on (\S+),", LONG_RUN.read_text(encoding="utf-8"))
    if before is None:
        raise ValueError(f"{LONG_RUN.name} names no run")
    text = (
        f"0 breaches in {num_rules:,} rules of the Hypothesis state machine and "
        f"{counts['events']:,} random events ({counts['steps']:,} steps, {counts['ends']:,} "
        f"completions, {counts['preemptions']:,} preemptions), and in {before[1]} events on "
        f"{before[2]}"
    )
    return Measured(text, num_rules >= MIN_RULES)


def _random_events(number: int) -> Counter[str]:
    from random_trial import STEPS_A_TRIAL, run_trial

    counts: Counter[str] = Counter()
    seed = 18_000_000
    while counts["events"] < number:
        counts += run_trial(seed, min(STEPS_A_TRIAL, number - counts["events"]))
        seed += 1
    return counts


def _machine() -> Any:
    spec = importlib.util.spec_from_file_location("engine_state", MACHINE)
    if spec is None or spec.loader is None:
        raise ImportError(f"{MACHINE} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules["engine_state"] = module
    spec.loader.exec_module(module)
    return module
