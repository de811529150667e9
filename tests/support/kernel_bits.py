"""Prints a hash of the native kernels' results. Arguments: folders of machine code; "noise-first".

Run in a process of its own: machine code is made or loaded when the kernels are imported.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path

from dpprobe.machine_code import MachineCode

KERNELS = ["dpprobe.heads.kernels.fused_step", "dpprobe.privacy.noise"]


def main(*arguments: str) -> None:
    folders = [Path(argument) for argument in arguments if argument != "noise-first"]
    MachineCode.folders = lambda _: folders  # type: ignore[method-assign, assignment]
    for name in KERNELS[::-1] if "noise-first" in arguments else KERNELS:
        importlib.import_module(name)
    print(results())


def results() -> str:
    import numpy as np
    import torch

    from dpprobe.heads.kernels import fused_step
    from dpprobe.privacy.noise import GaussianNoise

    digest = hashlib.sha256()
    rows, columns, classes, steps = 300, 70, 7, 10
    for sigmoid in (False, True):
        source = torch.Generator().manual_seed(0)
        labels = torch.randint(0, classes, (rows,), generator=source)
        if sigmoid:
            labels = torch.nn.functional.one_hot(labels, classes).to(torch.uint8)
        data = fused_step.Arrays.of(
            torch.randn(rows, columns, generator=source),
            torch.rand(rows, generator=source) + 0.5,
            labels,
            torch.rand(rows, generator=source, dtype=torch.float64) * 0.3,
            sigmoid=sigmoid,
        )
        weights = fused_step.padded(2, classes, columns + 1)
        weights[:, :classes, : columns + 1] = 0.1 * torch.randn(
            2, classes, columns + 1, generator=source
        )
        releases = torch.zeros_like(weights)
        fused_step.add_clipped_sums(
            *data, np.arange(rows), weights.numpy(), classes, releases.numpy()
        )
        noise = torch.randn(steps, classes * (columns + 1), generator=source)
        head, average = weights[:1].clone(), weights[:1].clone()
        rates = np.full(steps, 0.01, dtype=np.float32)
        fused_step.descend(
            *data, np.arange(rows), np.full(steps, rows // steps), noise.numpy(), rates,
            head.numpy(), classes, torch.zeros_like(head).numpy(), rates, average.numpy(),
        )  # fmt: skip
        for tensor in (releases, head, average):
            digest.update(tensor.numpy().tobytes())
    normals = GaussianNoise([1, 2], 5000, torch.device("cpu")).draw(3, 1.3)
    digest.update(normals.contiguous().numpy().tobytes())
    return digest.hexdigest()


if __name__ == "__main__":
    main(*sys.argv[1:])
