"""A model with code of its own, by its id on a hub: the code of the revision, then offline."""

import json
import os
import subprocess
import sys

import pytest
from hub_server import MODEL, Hub, serve_hub
from transformers_families import write_family

pytestmark = pytest.mark.slow  # each run is a process that loads torch and transformers
PROGRAM = """
import sys
from quire import LLM, SamplingParams
params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
with LLM(
    sys.argv[1], revision="reviewed", dtype="float32", trust_remote_code=sys.argv[2] == "trusted"
) as llm:
    print(list(llm.generate([[5, 200, 17, 33]], params)[0].outputs[0].token_ids))
"""
MODELING = b"""
from transformers import LlamaForCausalLM
from .configuration_acme import AcmeConfig
class AcmeForCausalLM(LlamaForCausalLM):
    config_class = AcmeConfig
"""
CONFIGURATION = b"""
from pathlib import Path
from transformers import LlamaConfig
from .acme_marker import MARKER
Path(MARKER).touch()
class AcmeConfig(LlamaConfig):
    model_type = "acme"
"""


@pytest.fixture
def family(tmp_path):
    return write_family(tmp_path / "llama", "llama")


@pytest.fixture
def hub(family, tmp_path):
    """The model at the revision `reviewed`; later code cannot be imported."""
    files = {path.name: path.read_bytes() for path in family.folder.iterdir() if path.is_file()}
    config = json.loads(files["config.json"])
    named = {
        "AutoConfig": "configuration_acme.AcmeConfig",
        "AutoModelForCausalLM": "modeling_acme.AcmeForCausalLM",
    }
    config |= {"architectures": ["AcmeForCausalLM"], "model_type": "acme", "auto_map": named}
    files |= {
        "config.json": json.dumps(config).encode(),
        "modeling_acme.py": MODELING,
        "configuration_acme.py": CONFIGURATION,
        "acme_marker.py": f"MARKER = {str(tmp_path / 'ran')!r}".encode(),
    }
    with serve_hub(
        Hub(main={**files, "modeling_acme.py": b"raise ImportError"}, reviewed=files)
    ) as served:
        yield served


def run(hub, tmp_path, trust, **env):
    folders = {"HF_HUB_CACHE": tmp_path / "cache", "HF_MODULES_CACHE": tmp_path / "modules"}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, MODEL, trust],
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0",
             "HF_HUB_DISABLE_TELEMETRY": "1", **{k: str(v) for k, v in folders.items()}, **env},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def test_trusted_code_of_a_revision_runs_and_runs_again_offline(family, hub, tmp_path):
    first = run(hub, tmp_path, "trusted")
    assert first.returncode == 0, first.stderr
    hub.refusal = (500, "")
    again = run(hub, tmp_path, "trusted", HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    token_ids = json.loads(first.stdout.splitlines()[-1])
    assert json.loads(again.stdout.splitlines()[-1]) == token_ids
    expected = family.logprobs([5, 200, 17, 33, *token_ids[:-1]])[3:].argmax(-1)
    assert token_ids == expected.tolist()
    assert (tmp_path / "ran").exists()


def test_code_that_is_not_trusted_is_neither_downloaded_nor_run(hub, tmp_path):
    found = run(hub, tmp_path, "not trusted")
    assert found.returncode == 1
    assert "which only --trust-remote-code runs" in found.stderr
    assert not [name for name in hub.names() if name.endswith(".py")]
    assert not (tmp_path / "ran").exists()
