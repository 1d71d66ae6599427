"""Tokens are packed with their logits as by torch; the rest is tested with `HostInputs`."""

import pytest
import torch
from cpp_compilers import NEEDS_COMPILER

from quire.native.layer_kernels.cpu_steps import PackTokens
from quire.worker.sampling.sampled_tokens import SampledTokens, pack_tokens

pytestmark = NEEDS_COMPILER


@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (3, 7), (17, 320)])
@pytest.mark.parametrize("padding", [0, 3])
def test_tokens_are_packed_as_by_torch(shape, padding):
    num_rows, vocab_size = shape
    logits = torch.randn(num_rows, vocab_size + padding)[:, :vocab_size]
    token_ids = torch.randint(vocab_size, (num_rows,))
    assert torch.equal(PackTokens()(logits, token_ids), pack_tokens(logits, token_ids))


def test_an_id_outside_of_the_vocabulary_has_no_logit():
    token_ids = torch.tensor([4, 5, -1, 2**40, 0])
    packed = PackTokens()(torch.zeros(5, 5), token_ids)
    assert packed[0].tolist() == [4, 5, -1, 0, 0]
    assert SampledTokens(packed, 5).read().is_valid == [True, False, False, False, True]


def test_wrong_dtypes_and_strides_are_refused():
    with pytest.raises(ValueError, match="float32"):
        PackTokens()(torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="float32"):
        PackTokens()(torch.zeros(3, 2).t(), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="int64"):
        PackTokens()(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32))
