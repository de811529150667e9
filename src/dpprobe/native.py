"""Compiling with Numba: to machine code when a module is first imported, then kept in its cache."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numba

logger = logging.getLogger("dpprobe")


def jit(
    *signatures: str, fastmath: frozenset[str] = frozenset()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: compiled for these signatures, or where there are none for each caller's types.

    The cache notices a change of the module that a function stands in, not of what it calls in
    other modules: compiled functions call only functions of their own module.

    Args:
      signatures: in Numba's notation.
      fastmath: LLVM's flags. Without "nnan" and "ninf" NaN and infinity keep their meaning.
    """
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
