"""The kit of models notices a model that is wrong: a model is wrong if its reference is another."""

from copy import deepcopy

import pytest
import torch
from transformers_model import transformers_model

from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.model_contract import ModelContract, _greedy


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    return write_checkpoint(folder, "Qwen3ForCausalLM", seed=4, num_hidden_layers=1)


@pytest.fixture(scope="module")
def contract_class(checkpoint):
    theirs = transformers_model(checkpoint.folder)

    class Contract(ModelContract):
        architecture = "Qwen3ForCausalLM"
        config = checkpoint.config

        def weights(self, config):
            return checkpoint.weights

        def reference(self, config, weights, token_ids):
            return theirs(token_ids.unsqueeze(0)).logits[0]

    return Contract


@pytest.fixture
def contract(contract_class):
    return contract_class()


@pytest.fixture(scope="module")
def generated(contract_class, checkpoint):
    contract = contract_class()
    with contract._llm(checkpoint.folder) as llm:
        return llm.generate(contract._prompts(), _greedy())


@pytest.fixture
def alone(generated):
    return deepcopy(generated)  # a test changes it


def test_a_right_model_passes(contract, alone):
    contract.test_the_tokens_are_those_of_the_reference(alone)
    contract.test_the_output_is_not_trivial(alone)
    contract.test_the_description_counts_the_parameters()


@pytest.mark.parametrize("shift", [0.01, -0.01])
def test_other_log_probabilities_are_noticed(contract, alone, shift):
    right = contract.reference

    def reference(config, weights, token_ids):
        logits = right(config, weights, token_ids)
        logits[:, ::2] += shift
        return logits

    contract.reference = reference
    with pytest.raises(AssertionError, match=r"differs from the reference|more likely by"):
        contract.test_the_tokens_are_those_of_the_reference(alone)


def test_another_token_is_noticed(contract, alone):
    right = contract.reference

    def reference(config, weights, token_ids):
        return right(config, weights, token_ids).roll(1, -1)

    contract.reference = reference
    with pytest.raises(AssertionError, match="more likely by"):
        contract.test_the_tokens_are_those_of_the_reference(alone)


def test_a_batch_that_changes_something_is_noticed(contract, alone):
    with pytest.raises(AssertionError, match="in one batch gives"):
        contract._check_same(alone[1:], alone[:-1], "in one batch")


def test_a_model_that_repeats_one_token_is_noticed(contract, alone):
    alone[0].outputs[0].token_ids[:] = [7] * len(alone[0].outputs[0].token_ids)
    with pytest.raises(AssertionError, match="distinct tokens"):
        contract.test_the_output_is_not_trivial(alone[:1])


def test_a_wrong_number_of_parameters_is_noticed(contract):
    weights = contract.weights(contract.config)
    contract.weights = lambda config: {**weights, "another": torch.zeros(3)}
    with pytest.raises(AssertionError, match="the checkpoint has"):
        contract.test_the_description_counts_the_parameters()
