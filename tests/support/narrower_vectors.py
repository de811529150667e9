"""Runs tests of the kernels' sums on vectors with fewer lanes than this processor's vectors.

Run as `python -m tests.support.narrower_vectors`. Each number of lanes needs its own process, as
Numba detects the processor only once.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from llvmlite import binding

# By maximal number of lanes: prefixes of the processor features to hide. LLVM enables a feature
# again if another feature requires it: FMA requires AVX, for example.
LACKS = {
    8: ["avx512"],
    4: ["avx", "fma", "f16c", "vaes", "vpclmulqdq", "xop", "sha512", "sm3", "sm4"],
}


def hide(prefixes: list[str]) -> None:
    """Hides processor features with these prefixes, also from LLVM."""
    features = binding.get_host_cpu_features()
    features.update({name: False for name in features if name.startswith(tuple(prefixes))})
    binding.get_host_cpu_features = lambda: features


def compile_what_is_called() -> None:
    """Compiles functions only at their first call, for the types of its arguments.

    Otherwise steps and noise are compiled too, which takes as long again; no test calls them.
    """
    from dpprobe.privacy import machine_code

    code: Any = machine_code.MachineCode
    jit = code.jit
    code.jit = lambda self, *_, **flags: jit(self, **flags)


def check_sums(lanes: int) -> None:
    hide(LACKS[lanes])
    compile_what_is_called()
    from dpprobe.heads.kernels import vectors
    from tests.unit.heads.kernels import test_exact_step, test_fused_step, test_vectors

    assert lanes >= vectors.LANES, f"{vectors.LANES} lanes"
    for count in (2, 4):
        for kind in (np.float32, np.float64):
            test_vectors.test_sums_of_products_are_numpy_s(count, vectors.INTERLEAVED, kind)
    for dimension, classes in ((1, 2), (65, 11), (1025, 21)):
        test_fused_step.test_sums_of_any_shape_are_numpys(dimension, classes, False, False)
    for columns in (7, 130):
        test_exact_step.test_sums_equal_those_of_whole_numbers("plain", 40, columns, 6, 17)


def main() -> None:
    processes = {}
    for lanes in LACKS:
        if not (process := os.fork()):
            check_sums(lanes)
            return
        processes[process] = lanes
    for process, lanes in processes.items():
        assert os.waitpid(process, 0)[1] == 0, f"{lanes} lanes"


if __name__ == "__main__":
    main()
