"""An engine in a program of its own, on this machine or another one, that a test talks to."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from network_namespaces import Machine

PROGRAM = """
import json, logging, sys
from quire import LLM, SamplingParams
from quire.errors import QuireError

def tell(name, value):
    print(json.dumps([name, value]), flush=True)

logging.basicConfig(level=logging.INFO)
try:
    with LLM(sys.argv[1], **json.loads(sys.argv[2])) as llm:
        tell("ready", None)
        for line in sys.stdin:
            prompts, num_tokens = json.loads(line)
            params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
            outputs = llm.generate(prompts, params)
            tell("tokens", [output.outputs[0].token_ids for output in outputs])
except QuireError as error:
    tell(type(error).__name__, str(error))
"""


class EngineProgram:
    """An engine.

    Args:
        folder: Folder of the model.
        options: Options of the engine.
        log_file: File for its log.
        machine: Machine on which it runs; None: this one.
    """

    def __init__(
        self,
        folder: str,
        options: Mapping[str, Any],
        log_file: Path,
        machine: Machine | None = None,
    ) -> None:
        command = [sys.executable, "-c", PROGRAM, folder, json.dumps(options)]
        self._log_file = log_file
        with open(log_file, "w") as log:
            self.process = subprocess.Popen(
                command if machine is None else machine.command(*command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log_file.read_text()

    def ask(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> None:
        """Ask for completions."""
        self.process.stdin.write(json.dumps([prompts, num_tokens]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> list[Any]:
        """Wait for its next line: what it is, and its value."""
        line = self.process.stdout.readline()
        assert line, self.log
        return json.loads(line)

    def begin_stop(self) -> None:
        """Make it shut the engine down."""
        self.process.stdin.close()

    def stop(self) -> None:
        """Make it shut the engine down, and wait for its end."""
        self.begin_stop()
        self.process.wait(60)

    def close(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
