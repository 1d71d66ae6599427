"""Gumbel noise and a sampler with it, in plain torch: what the kernels must agree with."""

import torch

from quire_samplers.uniform_noise import PURPOSE_SAMPLE, mix

MASK = 2**32 - 1


def signed(word):
    return word - 2**64 if word >= 2**63 else word


def row_keys(rows):
    """`[N]` int64 of 64 mixed bits."""
    seed, child = (rows.slot_fields[name][rows.slots] for name in ("seed", "child"))
    assert PURPOSE_SAMPLE == 0  # the kernels leave it out
    key = mix(seed + child * signed(0xD1B54A32D192ED03))
    return mix(key + rows.positions * signed(0x9E3779B97F4A7C15))


def token_words(keys, num_tokens, first_token_id=0):
    """`[N, M]` int64 of 32 mixed bits, of the tokens from the first one on."""
    low, high = (keys & MASK).unsqueeze(1), ((keys >> 32) & MASK).unsqueeze(1)
    token_ids = torch.arange(num_tokens, device=keys.device) + first_token_id
    word = (token_ids * 0x9E3779B1 + low) & MASK
    word = times(word ^ (word >> 16), 0x7FEB352D)
    word = times(word ^ (word >> 15) ^ high, 0x846CA68B)
    return word ^ (word >> 16)


def times(word, factor):
    """The low 32 bits of a product; int64 would overflow, so in two halves."""
    low, high = word & 0xFFFF, word >> 16
    return (low * factor + ((high * factor & 0xFFFF) << 16)) & MASK


def noise_of(words):
    """float32, of words of 32 bits."""
    u = ((words.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    series = u * (1 + u * (0.5 + u * (1 / 3 + u * 0.25)))
    return -torch.where(u < 2.0**-6, series, -torch.log(1 - u)).log()


def gumbel_scores(logits, rows):  # [N, M], both
    noise = noise_of(token_words(row_keys(rows), logits.shape[1], rows.first_token_id))
    return torch.where(rows.field("temperature") > 0, logits + noise, logits)


def gumbel_sample(logits, rows):  # [N, V] -> [N]
    return gumbel_scores(logits, rows).argmax(-1)
