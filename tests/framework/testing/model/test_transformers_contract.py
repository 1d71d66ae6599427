"""The kit of models notices models that are wrong, each by the test that is meant for it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from family_cases import CASES
from installed import write_distribution
from processes import path_with
from safetensors.torch import load_file

from quire.native.availability import native_unavailable_reason
from quire.testing.model.transformers_checkpoint import write_transformers_checkpoint

PARTS = Path(__file__).parents[3] / "parts"
WRONG = {
    "UnscaledForCausalLM": ("test_the_tokens_are_those_of_the_reference", "more likely by"),
    "UnwindowedForCausalLM": ("test_the_tokens_are_those_of_the_reference", "more likely by"),
    "UnsummedForCausalLM": (
        "test_tensor_parallel_ranks_compute_the_logits_of_the_reference",
        "the logits differ from the reference by",
    ),
    "UnadaptedForCausalLM": ("test_an_adapter_equals_its_merged_weights", "with merged weights"),
    "UnquantizedForCausalLM": (
        "test_quantization_changes_the_output_a_little",
        "no layer is quantized",
    ),
}
CONTRACT = """
import pytest
from family_cases import CASES
from quire.testing.model import TransformersContract

class Gemma2(TransformersContract):
    name: str

    def transformers_config(self):
        return CASES["Gemma2ForCausalLM"]["caps"].transformers_config()

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def renamed(cls, reference_checkpoint):
        cls.architecture = cls.name
        cls.config = {**cls.config, "architectures": [cls.name]}
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The output of the tests that are meant for the wrong models, and of those for a right one."""
    folder = tmp_path_factory.mktemp("wrong")
    source = (PARTS / "wrong_models.py").read_text()
    write_distribution(
        folder, "wrong-models", {"wrong_models": "wrong_models"}, wrong_models=source
    )
    classes = [f"class Test{name}(Gemma2):\n    name = {name!r}\n" for name in WRONG]
    classes.append("class TestRight(Gemma2):\n    name = 'RightForCausalLM'\n")
    file = folder / "test_wrong.py"
    file.write_text("\n".join((CONTRACT, *classes)))
    chosen = [f"{file}::Test{name}::{test}" for name, (test, _) in WRONG.items()]
    chosen += [f"{file}::TestRight::{test}" for test in {test for test, _ in WRONG.values()}]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", "addopts=", *chosen],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path_with(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    return ran.stdout + ran.stderr


def failure(report, name, test):
    """Return what pytest prints of a failure; empty if there is none."""
    found = re.search(rf"^_+ Test{name}\.{test}\S* _+$.*?(?=^[_=]{{3,}} |\Z)", report, re.M | re.S)
    return "" if found is None else found[0]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_model_fails_the_test_that_is_meant_for_it(report, name):
    test, message = WRONG[name]
    if "quantization" in test and (reason := native_unavailable_reason()) is not None:
        pytest.skip(reason)
    assert message in failure(report, name, test), report


def test_the_right_model_passes_them(report):
    verdicts = [
        line.split()[1]
        for line in report.splitlines()
        if line.startswith("test_wrong.py::TestRight::")
    ]
    assert len(verdicts) == len({test for test, _ in WRONG.values()}), report
    assert set(verdicts) <= {"PASSED", "SKIPPED"}, report


def test_all_that_is_stored_is_random(tmp_path):
    written = write_transformers_checkpoint(
        tmp_path, CASES["Glm4MoeForCausalLM"]["groups"].transformers_config()
    )
    tensors = load_file(tmp_path / "model.safetensors")
    assert any("correction_bias" in name for name in tensors)
    for name, tensor in tensors.items():
        assert len(tensor.flatten().unique()) > 1, name
    assert set(written.config["architectures"]) == {"Glm4MoeForCausalLM"}
