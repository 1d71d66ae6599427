"""A machine on which kernels cannot be compiled serves with torch, and logs the reason once."""

import json

import pytest
from cpp_compilers import COMPLAINT, NEEDS_COMPILER, broken_compiler, run_python

from quire import LLM, SamplingParams
from quire.testing.checkpoints import write_checkpoint

pytestmark = NEEDS_COMPILER  # the machine has one that works; each process here is given another

SCRIPT = """
import json, logging, sys
from quire import LLM, SamplingParams
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
if __name__ == "__main__":
    for options in {engines}:
        print("next engine", file=sys.stderr, flush=True)
        with LLM({folder!r}, max_model_len=64, **options) as llm:
            params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
            (output,) = llm.generate("hello", params)
            print(json.dumps(output.outputs[0].token_ids))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_checkpoint(tmp_path_factory.mktemp("model"), "Qwen3ForCausalLM").folder)


@pytest.fixture(scope="module")
def truth(folder):
    """The completion by torch's operators."""
    with LLM(folder, max_model_len=64, kernels="torch") as llm:
        params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        (output,) = llm.generate("hello", params)
        return output.outputs[0].token_ids


def completed(folder, compiler, tmp_path, *engines):
    """Run an engine in a fresh process, or several with these options, one after the other."""
    environment = {"QUIRE_CACHE_DIR": str(tmp_path / "cache"), "CXX": compiler}
    return run_python(SCRIPT.format(folder=folder, engines=engines or ({},)), environment)


def warnings(log):
    return [line for line in log.splitlines() if line.startswith("WARNING")]


def test_without_a_compiler_torch_is_used_and_the_reason_is_logged(folder, truth, tmp_path):
    done = completed(folder, "/nonexistent/c++", tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == list(truth)
    (warning,) = warnings(done.stderr)
    assert "torch operators are used instead" in warning
    assert "looked for '/nonexistent/c++' of the variable CXX; install g++" in warning


def test_a_bfloat16_checkpoint_gets_the_same_warning(tmp_path):
    """Where the processor has bfloat16, torch's operators then compute in it."""
    folder = write_checkpoint(tmp_path, "Qwen3ForCausalLM", torch_dtype="bfloat16").folder
    engines = ({}, {"dtype": "float32"}, {"dtype": "float16"})
    done = completed(str(folder), "/nonexistent/c++", tmp_path, *engines)
    assert done.returncode == 0, done.stderr
    _, unnamed, float32, float16 = done.stderr.split("next engine\n")
    (warning,) = warnings(unnamed)
    assert "torch operators are used instead" in warning
    assert "looked for '/nonexistent/c++' of the variable CXX; install g++" in warning
    assert len(warnings(float32)) == 1
    assert warnings(float16) == [], "no warning where the user names a dtype without kernels"


@pytest.mark.parametrize("how", ["fails to compile", "makes garbage"])
def test_a_compiler_that_fails_is_one_warning_and_torch_is_used(folder, truth, tmp_path, how):
    done = completed(folder, broken_compiler(how, tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == list(truth)
    (warning,) = warnings(done.stderr)
    assert "torch operators are used instead" in warning
    assert "broken-c++" in warning
    assert done.stderr.count(COMPLAINT) == (how == "fails to compile")


def test_named_kernels_that_cannot_be_compiled_are_an_error(folder, tmp_path):
    compiler = broken_compiler("fails to compile", tmp_path)
    done = completed(folder, compiler, tmp_path, {"kernels": "native"})
    assert done.returncode != 0
    assert COMPLAINT in done.stderr.splitlines()[-1]
