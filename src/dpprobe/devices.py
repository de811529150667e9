"""The device, threads, compiled code and Python that a process computes with."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpprobe.errors import ConfigError

logger = logging.getLogger("dpprobe")


def resolve_device(name: str) -> str:
    """Returns the torch device of a study's `device`: "cpu" or "cuda".

    Raises:
      ConfigError: when cuda is asked for and torch sees no GPU.
    """
    import torch  # heavy: a start of Snakemake imports this module

    available = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if available else "cpu"
    if name == "cuda" and not available:
        raise ConfigError("device: cuda was asked for, but torch sees no GPU; write auto or cpu")
    return name


def limit_threads(threads: int) -> None:
    """Limits torch to the threads that the scheduler granted."""
    import torch  # as above

    torch.set_num_threads(max(1, threads))


def jit(
    *signatures: str, fastmath: frozenset[str] = frozenset()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a decorator that compiles a function with Numba and caches the machine code.

    The cache notices a change of the module that a function stands in, but not of functions that it
    calls in other modules: compiled functions call only functions of their own module.

    Args:
      signatures: in Numba's notation; with none, the types of each call are compiled for.
      fastmath: LLVM's flags. Without "nnan" and "ninf" NaN and infinity keep their meaning.
    """
    import numba  # heavy: only what defines compiled functions needs it

    options: dict[str, Any] = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": set(fastmath) or False,
    }

    def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            return numba.njit(list(signatures) or None, cache=True, **options)(function)
        except RuntimeError as error:
            if "cannot cache" not in str(error):
                raise
            logger.info("%s; set NUMBA_CACHE_DIR to compile only once", error)
            return numba.njit(list(signatures) or None, **options)(function)

    return compiled


def put_python_on_path() -> None:
    """Puts this process's Python first on PATH, so that commands it starts run under it."""
    folder = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])
