"""The kit of models, on the families that ship; transformers is the reference."""

import pytest
from transformers_model import transformers_model

from quire.testing.checkpoints import write_checkpoint
from quire.testing.model import ModelContract


class Family(ModelContract):
    """A family whose tiny checkpoints `quire.testing.checkpoints` writes."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def written(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("reference")
        cls.checkpoint = write_checkpoint(folder, cls.architecture, seed=2, num_hidden_layers=2)
        cls.config = cls.checkpoint.config

        cls.theirs = transformers_model(folder)

    def weights(self, config):
        return self.checkpoint.weights

    def reference(self, config, weights, token_ids):
        return self.theirs(token_ids.unsqueeze(0)).logits[0]


class TestLlama(Family):
    architecture = "LlamaForCausalLM"


@pytest.mark.slow
class TestQwen2(Family):
    architecture = "Qwen2ForCausalLM"


@pytest.mark.slow
class TestQwen3(Family):
    architecture = "Qwen3ForCausalLM"


class TestGemma3(Family):
    architecture = "Gemma3ForCausalLM"
