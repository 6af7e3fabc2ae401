"""What the small language models of this repository share: text in bytes, and training on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 128
"""Bytes of ASCII; there are no others in what is learned."""


def pages(*patterns: str) -> list[Path]:
    """Returns the files of the repository that patterns name, in order."""
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def pieces(data: Array, count: int, length: int, rng: np.random.Generator) -> Array:
    """Returns ``[count, length + 1]`` bytes from places drawn at random."""
    places = rng.integers(0, len(data) - length - 1, count)
    return np.stack([data[p : p + length + 1] for p in places]).astype(np.int64)


def loss_of(logits: Any, batch: Any) -> Any:
    """Returns the cross entropy of the byte behind each of ``batch[:, :-1]``."""
    from torch.nn import functional

    return functional.cross_entropy(logits.reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1))


def descend(
    parameters: Iterable[Any], loss: Callable[[int], Any], steps: int, *, every: int, **adam: Any
) -> None:
    """Trains with AdamW and a rate that falls as a cosine.

    Args:
        parameters: What is trained.
        loss: Gives the loss of a step.
        steps: How many there are.
        every: After so many steps the perplexity is printed.
        **adam: The optimizer's rate, betas and decay.
    """
    import torch

    optimizer = torch.optim.AdamW(parameters, **adam)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        found = loss(step)
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        schedule.step()
        if step % every == 0:
            print(f"step {step}: perplexity {math.exp(found.item()):.2f}", flush=True)
