"""Generators of random numbers on the host or a device, from a seed."""

import importlib

import torch


def seeded_generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator whose numbers depend on the seed and the kind of device alone.

    `torch.Generator` cannot be called before this module of torch was executed, which a process
    that defers modules of torch does not do at start-up.
    """
    importlib.import_module("torch._prims.rng_prims")
    return torch.Generator(device).manual_seed(seed)
