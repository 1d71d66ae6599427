"""The tests of the kit notice a model that is wrong: here, an engine that leaves something out."""

from dataclasses import replace

import pytest
import torch

from quire.errors import CheckpointCorruptError
from quire.native.availability import native_unavailable_reason
from quire.testing.model import ModelContract


@pytest.fixture
def contract(checkpoint):
    class Contract(ModelContract):
        architecture = "Qwen3ForCausalLM"
        config = checkpoint.config

        def weights(self, config):
            return checkpoint.weights

    return Contract()


@pytest.fixture
def unchanged(scene):
    """A scene whose engines always have the same checkpoint."""
    llm = scene.llm
    scene.llm = lambda folder=None, **options: llm(**options)
    return scene


def test_a_wrong_number_of_parameters_is_noticed(contract, scene, checkpoint):
    contract.test_the_description_counts_the_parameters(scene)
    contract.weights = lambda config: {**checkpoint.weights, "another": torch.zeros(3)}
    with pytest.raises(AssertionError, match="the checkpoint has"):
        contract.test_the_description_counts_the_parameters(scene)


def test_a_config_that_is_not_checked_is_noticed(contract, scene):
    scene.capabilities = replace(scene.capabilities, describe="wrong_models:describe_unchecked")
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        contract.test_a_wrong_config_is_refused_by_name(scene)


def test_a_description_that_imports_torch_is_noticed(contract, scene):
    scene.capabilities = replace(scene.capabilities, describe="torch:is_tensor")
    with pytest.raises(AssertionError, match="torch:is_tensor imports torch"):
        contract.test_describing_needs_no_torch(scene)


def test_tensors_that_are_ignored_are_noticed(contract, unchanged, tmp_path):
    with pytest.raises(AssertionError, match=r"changes nothing: .*lm_head\.weight"):
        contract.test_every_tensor_of_the_checkpoint_matters(unchanged, tmp_path)


def test_an_adapter_that_changes_other_than_its_merged_weights_is_noticed(
    contract, unchanged, alone, tmp_path
):
    with pytest.raises(AssertionError, match="with an adapter"):
        contract.test_an_adapter_equals_its_merged_weights(unchanged, alone, tmp_path)


def test_another_output_beside_an_adapter_is_noticed(contract, scene, alone, tmp_path):
    alone[0].outputs[0].token_ids[0] += 1
    with pytest.raises(AssertionError, match="beside an adapter"):
        contract.test_an_adapter_equals_its_merged_weights(scene, alone, tmp_path)


@pytest.mark.skipif(native_unavailable_reason() is not None, reason="int8 needs native kernels")
class TestQuantization:
    def test_weights_that_stay_as_they_are_are_noticed(self, contract, scene):
        llm = scene.llm
        scene.llm = lambda folder=None, quantization=None: llm(folder)
        with pytest.raises(AssertionError, match="no layer is quantized"):
            contract.test_quantization_changes_the_output_a_little(scene)

    def test_a_large_change_is_noticed(self, contract, scene):
        contract.quantization_error = 1e-9
        with pytest.raises(AssertionError, match="changes a prompt token's log probability"):
            contract.test_quantization_changes_the_output_a_little(scene)


@pytest.mark.parametrize(
    "test",
    ["test_a_missing_tensor_stops_the_start", "test_a_tensor_of_another_shape_stops_the_start"],
)
def test_a_start_with_wrong_tensors_is_noticed(contract, unchanged, tmp_path, test):
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        getattr(contract, test)(unchanged, tmp_path)


@pytest.mark.parametrize(
    "test",
    ["test_a_missing_tensor_stops_the_start", "test_a_tensor_of_another_shape_stops_the_start"],
)
def test_an_error_that_does_not_name_the_tensor_is_noticed(contract, scene, tmp_path, test):
    def refuse(folder):
        raise CheckpointCorruptError("something is wrong")

    scene.llm = refuse
    with pytest.raises(AssertionError, match="something is wrong"):
        getattr(contract, test)(scene, tmp_path)
