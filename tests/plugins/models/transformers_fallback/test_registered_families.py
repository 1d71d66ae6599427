"""Every registered family through the fallback: logits in chunks and on two ranks, or a refusal."""

from dataclasses import replace

import pytest
import torch
from family_cases import CASES
from family_checkpoints import write_family
from model_parts import CONTEXT, random_tokens

from quire.errors import UnsupportedModelError
from quire.testing.model.dense_attention import bind_dense_attention, difference, logits_of
from quire.testing.model.threaded_ranks import ThreadedGroup, run_ranks
from quire.worker.loading.weight_loading import load_weights
from quire_models.transformers_fallback.fallback_description import describe_by_transformers
from quire_models.transformers_fallback.transformers_model import TransformersForCausalLM

TOLERANCE = 1e-4
QUICK = [("CohereForCausalLM", "norms")]
NAMES = [(family, shape) for family, shapes in CASES.items() for shape in shapes]
REFUSED = {
    ("BloomForCausalLM", None): "takes no positions",
    ("FalconForCausalLM", None): "0 modules call",
    ("GPTJForCausalLM", None): "0 modules call",
    ("Gemma4ForCausalLM", "shared, double wide"): "a mask of its own",
    ("Gemma4ForCausalLM", "shared, experts"): "from shapes alone",
    ("HunYuanDenseV1ForCausalLM", "alpha"): "of the kind dynamic",
    ("Llama4ForCausalLM", "chunks"): "numbers the tokens",
    ("MiniCPM3ForCausalLM", "longrope"): "of the kind longrope",
    ("MptForCausalLM", None): "configs inside",
    ("Phi3ForCausalLM", "longrope"): "of the kind longrope",
}


@pytest.mark.parametrize(
    ("family", "shape"),
    [pytest.param(*n, marks=() if n in QUICK else pytest.mark.slow) for n in NAMES],
)
def test_logits_are_those_of_transformers_or_the_reason_is_given(tmp_path, family, shape):
    written = write_family(tmp_path, CASES[family][shape])
    reason = REFUSED.get((family, shape)) or REFUSED.get((family, None))
    if reason is not None:
        with pytest.raises(UnsupportedModelError, match=reason):
            describe_by_transformers(written.config)
        return
    description, token_ids = describe_by_transformers(written.config), random_tokens(60, seed=2)

    def logits_of_rank(group: ThreadedGroup) -> torch.Tensor:
        context = CONTEXT if group.size == 1 else replace(CONTEXT, tp=group)
        model = TransformersForCausalLM(description, context)
        bind_dense_attention(model)
        load_weights(model, written.folder)
        starts = range(0, 60, 17)
        return torch.cat([logits_of(model, token_ids[s : s + 17], s) for s in starts])

    for size in (1, 2):
        for logits in run_ranks(size, logits_of_rank):
            assert difference(logits, written.logits(token_ids)) < TOLERANCE
