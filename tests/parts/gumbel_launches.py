"""Every launch of the sampler that draws with Gumbel noise, on tensors that nobody reads."""

from collections.abc import Sequence

import torch

from quire.interfaces.sampling import SamplerCapabilities
from quire.kernels.bitmask import mask_logits
from quire.testing.sampling.sampled_rows import sampled_rows
from quire_samplers.gumbel.gumbel import Gumbel
from quire_samplers.plugin import MIN_P, TEMPERATURE, TOP_K, TOP_P

CAPABILITIES = SamplerCapabilities(stage="sample", fields=(TEMPERATURE, TOP_K, TOP_P, MIN_P))
USUAL_SIZES = (32_000, 151_936)
VOCAB_SIZES = (320, *USUAL_SIZES, 50_257, 128_256, 262_144)


def usual_samplings() -> None:
    """Draw both ways from vocabularies of usual sizes."""
    _draw_from(USUAL_SIZES)


def every_sampling() -> None:
    """Draw both ways from vocabularies of all kinds of sizes."""
    _draw_from(VOCAB_SIZES)


def _draw_from(vocab_sizes: Sequence[int]) -> None:
    for vocab_size in vocab_sizes:
        step = Gumbel(vocab_size, torch.device("cpu"))
        for num_rows in (1, 16):
            rows = sampled_rows(CAPABILITIES, [{}] * num_rows)
            step.sample(torch.empty(num_rows, vocab_size), rows)
            step.sample_fused(torch.empty(num_rows, vocab_size), rows)


def every_mask() -> None:
    """Mask rows of several vocabularies, some of odd size."""
    for vocab_size in VOCAB_SIZES:
        words = torch.empty(2, -(-vocab_size // 32), dtype=torch.int32)
        mask_logits(torch.empty(4, vocab_size), torch.empty(2, dtype=torch.int64), words)
