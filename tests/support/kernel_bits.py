"""Prints hashes of the native kernels' results, each after the name of the results.

Arguments: folders of machine code (default: dpprobe's own); "few" to hash only the results of
`FEW`, which are then imported in reverse order.

Must run in its own process: machine code is compiled or loaded when the kernels are imported.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dpprobe.privacy.machine_code import MachineCode

if TYPE_CHECKING:
    import numpy as np

FLOAT_KERNELS = [
    "dpprobe.analyses.fairness.group_kernels",
    "dpprobe.heads.kernels.fused_step",
    "dpprobe.privacy.float32_noise",
]
# These compile quickly.
FEW = ["dpprobe.privacy.float32_noise", "dpprobe.analyses.fairness.group_kernels"]
DRAWING_KERNELS = ["dpprobe.privacy.rounded_gaussian", "dpprobe.privacy.sampling"]
# Omitted, as they take half a minute to compile: float64 represents their integer sums exactly, so
# the bits are the same for any order of additions.
EXACT_KERNELS = ["dpprobe.heads.kernels.exact_step", "dpprobe.heads.kernels.residuals"]


def main(*arguments: str) -> None:
    folders = [Path(argument) for argument in arguments if argument != "few"]
    if folders:
        MachineCode.list_folders = lambda _: folders  # type: ignore[method-assign, assignment]
    few = "few" in arguments
    for name in FEW if few else [*FLOAT_KERNELS, *DRAWING_KERNELS]:
        importlib.import_module(name)
    computed = {"few": few_results}
    if not few:
        computed |= {"steps": step_results, "draws": drawn_results}
    for word, results in computed.items():
        digest = hashlib.sha256()
        for numbers in results():
            digest.update(numbers.tobytes())
        print(word, digest.hexdigest())


def few_results() -> list[np.ndarray]:
    """Returns noise, and AUCs of groups."""
    import torch

    from dpprobe.privacy.float32_noise import GaussianNoise

    normals = GaussianNoise([1, 2], 5000, torch.device("cpu")).draw_steps(3, 1.3)
    return [normals.contiguous().numpy(), group_areas()]


def step_results() -> list[np.ndarray]:
    """Returns clipped sums, and heads after several steps."""
    import numpy as np
    import torch

    from dpprobe.heads.kernels import fused_step
    from dpprobe.privacy.float32_noise import GaussianNoise

    found = []
    rows, columns, classes, steps = 300, 70, 7, 10
    for sigmoid in (False, True):
        source = torch.Generator().manual_seed(0)
        labels = torch.randint(0, classes, (rows,), generator=source)
        if sigmoid:
            labels = torch.nn.functional.one_hot(labels, classes).to(torch.uint8)
        data = fused_step.Arrays.make_arrays(
            torch.randn(rows, columns, generator=source),
            torch.rand(rows, generator=source) + 0.5,
            labels,
            torch.rand(rows, generator=source, dtype=torch.float64) * 0.3,
            sigmoid=sigmoid,
        )
        weights = fused_step.padded_zeros(2, classes, columns + 1)
        weights[:, :classes, : columns + 1] = 0.1 * torch.randn(
            2, classes, columns + 1, generator=source
        )
        releases = torch.zeros(2, *weights.shape)
        fused_step.add_clipped_sums(
            tuple(data),
            np.arange(rows),
            np.array([200, 100]),
            weights.numpy(),
            classes,
            releases.numpy(),
        )
        noise = GaussianNoise([1], classes * (columns + 1), torch.device("cpu"))
        head, average = weights[:1].clone(), weights[:1].clone()
        rates = np.full(steps, 0.01, dtype=np.float32)
        unseen = 2 * [np.zeros((0, 0, 0), dtype=np.float32)]  # no observer
        fused_step.take_steps(
            tuple(data),
            np.arange(rows),
            np.full(steps, rows // steps),
            noise.noise_source(0.5),
            rates,
            head.numpy(),
            classes,
            torch.zeros_like(head).numpy(),
            rates,
            average.numpy(),
            (*unseen, False),
        )
        found += [tensor.numpy() for tensor in (releases, head, average)]
    return found


def group_areas() -> np.ndarray:
    """Returns AUCs of groups of rows in resamples."""
    import numpy as np

    from dpprobe.analyses.fairness.group_kernels import compute_areas

    generator = np.random.default_rng(0)
    rows, units, groups, lanes = 400, 150, 5, 64
    counts = generator.integers(4, size=(units, lanes), dtype=np.uint8)
    unit = generator.integers(units, size=rows, dtype=np.int32)
    starts = np.arange(groups + 1) * (rows // groups)
    positive, last = generator.random(rows) < 0.5, generator.random(rows) < 0.8
    last[starts[1:] - 1] = True
    areas = np.empty((groups, lanes))
    compute_areas(counts, unit, positive, last, generator.random(rows), starts, areas)
    return areas


def drawn_results() -> list[np.ndarray]:
    """Returns integers: rounded noise, and a batch."""
    from dpprobe.privacy.keystream import Keystream
    from dpprobe.privacy.rounded_gaussian import RoundedGaussian
    from dpprobe.privacy.sampling import ExactPoissonSampler

    batch, _ = ExactPoissonSampler(5000, 0.1, Keystream.from_seed(1, "batch")).draw_block(3)
    return [RoundedGaussian(Keystream.from_seed(1, "noise")).draw_numbers(5000, 1e6), batch]


if __name__ == "__main__":
    main(*sys.argv[1:])
