"""A right model, and what its engine generates."""

from copy import deepcopy

import pytest
from transformers_model import transformers_model

from quire.testing.checkpoints import write_checkpoint
from quire.testing.model.model_scene import ModelScene, greedy


@pytest.fixture(scope="package")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reference")
    return write_checkpoint(folder, "Qwen3ForCausalLM", seed=4, num_hidden_layers=1)


@pytest.fixture(scope="package")
def right(checkpoint):
    """A scene whose reference is right."""
    theirs = transformers_model(checkpoint.folder)
    return ModelScene(
        checkpoint.config,
        checkpoint.folder,
        lambda token_ids: theirs(token_ids.unsqueeze(0)).logits[0],
    )


@pytest.fixture
def scene(right):
    """A scene of its own for each test, which changes it."""
    return ModelScene(right.config, right.folder, right.reference)


@pytest.fixture(scope="package")
def generated(right):
    with right.llm() as llm:
        return llm.generate(right.prompts, greedy())


@pytest.fixture
def alone(generated):
    return deepcopy(generated)  # a test changes it
