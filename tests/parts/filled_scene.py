"""A scene for attention backends whose requests have a context that was written directly."""

import torch

from quire.testing.attention.attention_scene import AttentionScene
from quire.testing.attention.attention_sizes import SceneSizes
from quire.testing.kv_backend.pool_sizes import DTYPES, Padding


def filled(backend_class, sizes: SceneSizes, lengths, num_more=4):
    """Return a scene and its requests, with `lengths` computed tokens and `num_more` to come.

    K and V are written directly into the pages `[B, 2, K, S, D]`.
    """
    scene = AttentionScene(backend_class, sizes)
    numbers = [scene.add(length + num_more) for length in lengths]
    for number, length in zip(numbers, lengths, strict=True):
        request = scene.requests[number]
        slots = scene.layout([(number, length)], Padding()).slot_mapping.cpu()
        _, k, v = (rows[:length] for rows in request.rows)
        if scene.rotary_reference is not None:
            k = scene.rotary_reference.of(k, sizes.num_heads)
        for side, (x, scale) in enumerate(((k, sizes.k_scale), (v, sizes.v_scale))):
            blocks, rows = slots // sizes.block_size, slots % sizes.block_size
            scene.kv_cache[blocks, side, :, rows] = codes(x, sizes.kv_dtype, scale).to(sizes.device)
        request.num_computed = length
    return scene, numbers


def codes(x, kv_dtype, scale):
    """Return elements in the type of the cache."""
    if kv_dtype == "float8_e4m3fn":
        return (x.float() / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return x.to(DTYPES[kv_dtype])
