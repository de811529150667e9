"""Which device computes, with how many threads."""

from __future__ import annotations

import torch

from dpprobe.errors import ConfigError


def resolve_device(name: str) -> str:
    """The torch device of a study's `device`: "cpu" or "cuda".

    Raises:
      ConfigError: when cuda is asked for and torch sees no GPU.
    """
    available = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if available else "cpu"
    if name == "cuda" and not available:
        raise ConfigError("device: cuda was asked for, but torch sees no GPU; write auto or cpu")
    return name


def limit_threads(threads: int) -> None:
    """Keeps torch's own threads within what the scheduler granted."""
    torch.set_num_threads(max(1, threads))
