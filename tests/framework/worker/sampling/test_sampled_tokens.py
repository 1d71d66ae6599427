"""Sampled tokens are read from the host's copy."""

import torch

from quire.worker.device.copies import HostCopier
from quire.worker.sampling.row_logprobs import row_logprobs
from quire.worker.sampling.sampled_tokens import SampledTokens, pack_tokens

LOGITS = torch.tensor([[1.0, 3.0, 2.0], [0.5, 0.0, -1.0]])


def test_the_first_rows_are_kept_when_the_buffers_are_written_again():
    buffers = SampledTokens.of(torch.tensor([4, 5, 6]), torch.tensor([1.0, torch.nan, 2.0]), 7)
    kept = buffers.first(2)
    buffers.packed.fill_(0)
    assert kept.read() == ([4, 5], [True, False], [None, None], [None, None])


def test_reading_is_the_same_with_and_without_a_copy():
    token_ids = torch.tensor([2, 0])
    logprobs = row_logprobs(LOGITS[:1], token_ids[:1], [1, None])
    sampled = SampledTokens.of(token_ids, torch.tensor([2.0, -torch.inf]), 3)
    sampled.logprobs = logprobs
    directly = sampled.read()
    sampled.start_copy(HostCopier(torch.device("cpu")))
    assert sampled.copy is not None
    assert logprobs.copy is not None
    assert sampled.read() == directly
    assert directly.is_valid == [True, False]
    assert directly.logprobs[0].token_ids == [2, 1]
    assert directly.logprobs[0].rank == 2
    assert directly.logprobs[1] is None


def test_tokens_are_packed_with_their_own_logits():
    token_ids = torch.tensor([1, 2])
    sampled = SampledTokens(pack_tokens(LOGITS, token_ids), 3)
    assert sampled.packed.view(2, 2)[1].view(torch.float32).tolist() == [3.0, -1.0]
    assert sampled.read().token_ids == [1, 2]
    same = SampledTokens.of(token_ids, torch.tensor([3.0, -1.0]), 3)
    assert torch.equal(same.packed, sampled.packed)


def test_an_id_that_is_no_tokens_is_not_sound():
    sampled = SampledTokens.of(torch.tensor([0, 7, 6, -1]), torch.ones(4), 7)
    assert sampled.read().is_valid == [True, False, True, False]
    assert sampled.first(2).read().is_valid == [True, False]
