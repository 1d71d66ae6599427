"""Agreement of a tensor-parallel group on whether steps are replayed: all devices do, or none."""

import torch

from quire.layers.parallel import TensorParallelGroup


def all_agree(group: TensorParallelGroup, is_fine: bool, device: torch.device) -> bool:
    """Return whether it is fine on every device of a group; all devices must call it."""
    if group.size == 1:
        return is_fine
    votes = torch.full((1,), float(is_fine), device=device)
    return round(group.all_reduce(votes).item()) == group.size
