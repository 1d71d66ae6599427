"""Masking of logits by a bitmask, for all shapes."""

import pytest
import torch
from dry_launch import compiled_in_child
from kernel_device import DEVICE

from quire.kernels.bitmask import BLOCK, mask_logits
from quire.worker.sampling.logit_masks import mask_logits as plain


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, BLOCK, 2 * BLOCK + 5])
def test_the_kernel_does_what_plain_torch_does(vocab_size):
    random = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(5, vocab_size + 3, generator=random).to(DEVICE)[:, :vocab_size]
    num_words = -(-vocab_size // 32) + 1
    words = torch.randint(-(2**31), 2**31, (3, num_words), generator=random).int().to(DEVICE)
    rows = torch.tensor([4, 0, 2], device=DEVICE)
    expected = logits.clone()
    plain(expected, rows, words)
    mask_logits(logits, rows, words)
    assert torch.equal(logits, expected)
    assert torch.equal(expected[4].isfinite().cpu(), bits(words[0])[:vocab_size])


def bits(words):
    return torch.tensor([word >> bit & 1 for word in words.tolist() for bit in range(32)]) == 1


@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.slow), 90])
def test_the_kernel_compiles_for_gpus(capability):
    kernels = compiled_in_child("gumbel_launches:every_mask", capability)
    assert {kernel.name for kernel in kernels} == {"_mask_kernel"}
    assert all(kernel.fits() and kernel.local_bytes == 0 for kernel in kernels)
