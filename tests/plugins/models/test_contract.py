"""The kit of models on families that ship; transformers is the reference."""

import pytest
from family_cases import CASES
from transformers_model import transformers_model

from quire.testing.checkpoints import write_checkpoint
from quire.testing.model import TINY_SIZES, ModelContract, TransformersContract


class TestLlama(TransformersContract):
    def transformers_config(self):
        from transformers import AutoConfig

        return AutoConfig.for_model("llama", **TINY_SIZES)


class TestGemma3(ModelContract):
    """With a checkpoint and a reference of its own, as for models that transformers lacks."""

    architecture = "Gemma3ForCausalLM"

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


@pytest.mark.slow
class TestQwen2(TransformersContract):
    def transformers_config(self):
        return next(iter(CASES["Qwen2ForCausalLM"].values())).transformers_config()


@pytest.mark.slow
class TestGPT2(TransformersContract):
    def transformers_config(self):
        return CASES["GPT2LMHeadModel"]["scaled by layer"].transformers_config()


@pytest.mark.slow
class TestGemma4(TransformersContract):
    def transformers_config(self):
        return CASES["Gemma4ForCausalLM"]["shared, double wide"].transformers_config()


@pytest.mark.slow
class TestMixtral(TransformersContract):
    """Rounded weights let routers choose other experts."""

    quantization_error = 0.3

    def transformers_config(self):
        from transformers import AutoConfig

        return AutoConfig.for_model("mixtral", **TINY_SIZES, num_local_experts=4)


@pytest.mark.slow
class TestMistral(TransformersContract):
    """With a window shorter than a block in every layer."""

    def transformers_config(self):
        from transformers import AutoConfig

        return AutoConfig.for_model("mistral", **TINY_SIZES, sliding_window=9)
