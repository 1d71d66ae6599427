"""A tiny Acme checkpoint, its completion computed by hand, and quire as a separate process."""

import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from acme_reference import MAX_POSITIONS, SIZES, acme_weights
from safetensors.torch import save_file

from quire.testing.checkpoints import write_tokenizer

CHAT_TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }}\n{% endfor %}"
    "Write calls as [[call NAME {...}]].\n{% endif %}"
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
)
START_TIMEOUT_S = 60


def write_acme_checkpoint(folder: Path, seed: int = 0) -> Path:
    """Write a checkpoint of AcmeForCausalLM with every parameter random."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["AcmeForCausalLM"], "max_positions": MAX_POSITIONS, **SIZES}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(acme_weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(folder, SIZES["vocab_size"])
    path = folder / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text()) | {"chat_template": CHAT_TEMPLATE}
    path.write_text(json.dumps(tokenizer))
    return folder


class Quire:
    """The command `quire`, with some folders of installed plugins on its path."""

    def __init__(self, *sites: Path) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("QUIRE_")}
        path = os.pathsep.join([*map(str, sites), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = clean | {
            "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        self.command = str(Path(sys.executable).parent / "quire")

    def run(self, *argv: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [self.command, *map(str, argv)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    @contextmanager
    def serve(self, log: Path, *argv: object) -> Iterator[httpx.Client]:
        """Serve until the block ends; the output of the server goes to `log`."""
        with log.open("w") as errors:
            server = subprocess.Popen(
                [self.command, "serve", *map(str, argv), "--port", "0"],
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            with httpx.Client(base_url=_url_of(server, log), timeout=60) as client:
                yield client
        finally:
            server.terminate()
            server.wait(30)
            server.stdout.close()


def _url_of(server: subprocess.Popen[str], log: Path) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if select.select([server.stdout], [], [], 0.2)[0]:
            line = server.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if found:
                return found[0]
            if not line:
                break
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")
