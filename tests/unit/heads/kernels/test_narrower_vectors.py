"""The compiled sums on processors with narrower vectors than the one that runs the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

# LLVM takes a feature back in with any that needs it: AVX with FMA, say.
NEED_AVX = ["avx", "fma", "f16c", "vaes", "vpclmulqdq", "xop", "sha512", "sm3", "sm4"]


@pytest.mark.parametrize(("lanes", "lacks"), [(8, ["avx512"]), (4, NEED_AVX)])
def test_sums_on_narrower_vectors_are_right(tmp_path: Path, lanes: int, lacks: list[str]) -> None:
    """Tiles, tails and horizontal sums of 8 and 4 lanes."""
    command = [sys.executable, "-m", "tests.support.narrower_vectors", str(lanes), *lacks]
    variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run(command, cwd=REPOSITORY, env=variables, check=True)
