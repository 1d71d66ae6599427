"""Logit masks in C++, for every instruction set of this machine."""

import pytest
import torch
from native_libraries import SETS_AND_ARM, use_set

from quire.native.layer_kernels import libraries
from quire.native.layer_kernels.cpu_layers import LogitMask
from quire.worker.sampling.logit_masks import mask_logits


@pytest.fixture(params=SETS_AND_ARM, autouse=True)
def _each_set(request, monkeypatch):
    use_set(monkeypatch, libraries, request.param, "LAYERS")


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 2048, 70_005])
def test_masks_do_what_plain_torch_does(vocab_size):
    random = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(5, vocab_size + 3, generator=random)[:, :vocab_size]
    num_words = -(-vocab_size // 32) + 1
    words = torch.randint(-(2**31), 2**31, (3, num_words), generator=random).int()
    words[1], words[2, ::2] = -1, 0
    rows = torch.tensor([4, 0, 2])
    expected = logits.clone()
    mask_logits(expected, rows, words)
    LogitMask()(logits, rows, words)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize(
    ("logits", "rows", "words", "message"),
    [
        (
            torch.ones(2, 40).double(),
            [0],
            torch.zeros(1, 2).int(),
            r"rows must be float32 \[\.\.\., 40\]",
        ),
        (torch.ones(2, 40), [0.0], torch.zeros(1, 2).int(), "must be int64 and words int32, got"),
        (torch.ones(2, 40), [0], torch.zeros(1, 2).long(), "must be int64 and words int32, got"),
        (torch.ones(2, 40), [0], torch.zeros(1, 1).int(), r"\[1, 1\] words do not match 1 rows"),
        (torch.ones(2, 40), [0, 1], torch.zeros(1, 2).int(), r"\[1, 2\] words do not match 2 rows"),
        (
            torch.ones(40, 2).mT,
            [0],
            torch.zeros(1, 2).int(),
            "each row of the logits must be contiguous",
        ),
    ],
)
def test_masks_that_do_not_fit_the_logits_are_refused(logits, rows, words, message):
    with pytest.raises(ValueError, match=message):
        LogitMask()(logits, torch.tensor(rows), words)
