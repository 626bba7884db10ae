"""The order of examples, and every other random choice of an epoch, as a function of its place.

Nothing here keeps state, so a resumed run sees what an unbroken one sees.
"""

import hashlib

import torch
from torch import Tensor


def seed_of(*place: int | str) -> int:
    """A 63-bit seed for a place such as (seed, "order", epoch): equal places, equal seeds."""
    text = "/".join(str(part) for part in place)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_of(*place: int | str) -> torch.Generator:
    """A CPU generator for a place, the same on every device and machine."""
    return torch.Generator().manual_seed(seed_of(*place))


def epoch_order(num_examples: int, seed: int, epoch: int) -> Tensor:
    """The permutation [N] of the examples in one epoch, over all ranks."""
    return torch.randperm(num_examples, generator=generator_of(seed, "order", epoch))


def rank_batches(order_N: Tensor, batch_size: int, rank: int, world_size: int) -> list[Tensor]:
    """The batches of one rank: global batch k is order[k * batch_size : (k + 1) * batch_size],
    dealt to the ranks in turn. Over all ranks every example comes exactly once.

    A last batch with fewer examples than ranks is dropped, so that every rank takes as many steps.
    """
    batches = order_N.split(batch_size)
    return [batch[rank::world_size] for batch in batches if len(batch) >= world_size]
