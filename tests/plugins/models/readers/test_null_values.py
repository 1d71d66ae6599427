"""A flag that config.json sets to null is false, as in transformers."""

from dataclasses import replace

import pytest
from family_cases import CASES
from family_checkpoints import write_family
from model_parts import make_model, random_tokens

from quire.testing.model.dense_attention import difference, logits_of
from quire.worker.loading.weight_loading import load_weights

NULLS = [
    ("DeepseekV3ForCausalLM", "norm_topk_prob"),
    ("DeepseekV3ForCausalLM", "rope_interleave"),
    ("Dots1ForCausalLM", "norm_topk_prob"),
    ("FalconForCausalLM", "multi_query"),
    ("FalconForCausalLM", "parallel_attn"),
    ("HYV3ForCausalLM", "norm_topk_prob"),  # not a key of the family
]


@pytest.mark.parametrize(("family", "key"), NULLS)
def test_logits_with_a_null_flag_equal_those_of_transformers(tmp_path, family, key):
    case = next(iter(CASES[family].values()))
    nulled = replace(case, options={**case.options, key: None})
    checkpoint = write_family(tmp_path, nulled)
    assert checkpoint.config[key] is None
    model = make_model(checkpoint.config)
    load_weights(model, checkpoint.folder)
    token_ids = random_tokens(40)
    assert difference(logits_of(model, token_ids), checkpoint.logits(token_ids)) < 1e-4
