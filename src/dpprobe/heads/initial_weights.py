"""The initial weights of first-order heads: zeros, random weights per seed, or a public file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from dpprobe.errors import ConfigError
from dpprobe.files.array_files import require_short_header
from dpprobe.heads.gradient_options import INIT_DEVIATION, GradientOptions
from dpprobe.heads.rows import Rows
from dpprobe.privacy.entropy import SEEDED, Entropy
from dpprobe.privacy.private_mark import check_unmarked

# The standard deviation of a standard normal truncated at two standard deviations.
_TRUNCATED = 0.87962566103423978


def initial_weights(
    options: GradientOptions, rows: Rows, seeds: Sequence[int], entropy: Entropy = SEEDED
) -> torch.Tensor:
    """Returns float32 [seeds, classes, d + 1]; raises ConfigError if a file does not fit."""
    return sized_weights(
        options, seeds, classes=rows.num_classes, dimension=rows.dimension, entropy=entropy
    ).to(rows.device)


def sized_weights(
    options: GradientOptions,
    seeds: Sequence[int],
    *,
    classes: int,
    dimension: int,
    entropy: Entropy = SEEDED,
) -> torch.Tensor:
    """Returns float32 [seeds, classes, dimension + 1] as `initial_weights` does, on the CPU."""
    start = np.zeros((len(seeds), classes, dimension + 1))
    for head, seed in zip(start, seeds, strict=True):
        generator = entropy.make_generator(seed, "init")
        if options.init == "torch":
            bound = 1 / math.sqrt(dimension)
            head[:] = generator.uniform(-bound, bound, size=head.shape)
        elif options.init == "scaled":
            deviation = INIT_DEVIATION if options.init_scale is None else options.init_scale
            head[:, :-1] = generator.normal(0, deviation, size=(classes, dimension))
        elif options.init == "lecun_normal":
            head[:, :-1] = truncated_normal(generator, (classes, dimension))
            head[:, :-1] /= math.sqrt(dimension)
    if options.init == "file":
        path = options.init_file
        assert path is not None, "`check_start` requires it"
        scale = 1.0 if options.init_scale is None else options.init_scale
        start[:] = scale * weights_from_file(path, classes, dimension)
    if options.init_bias is not None:
        start[..., -1] = options.init_bias
    return torch.from_numpy(start).to(torch.float32)


def truncated_normal(
    generator: np.random.Generator, shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """Draws normals truncated at two deviations, with deviation 1 (Flax's `lecun_normal`)."""
    values = generator.standard_normal(shape)
    while (beyond := np.abs(values) > 2).any():
        values[beyond] = generator.standard_normal(int(beyond.sum()))
    return values / _TRUNCATED


def weights_from_file(
    path: str, classes: int, dimension: int, *, option: str = "init_file"
) -> npt.NDArray[np.float64]:
    """Reads public weights [classes, d + 1]; biases are 0 if the file has none.

    Raises ConfigError if shapes do not fit, PrivacyError if the weights are from private images.
    """
    try:
        require_short_header(Path(path))
        check_unmarked(Path(path), option=option, written=path)
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(
            f"{option} {path}: cannot be read ({error}); name a safetensors file"
        ) from None
    if "weights" not in tensors:
        raise ConfigError(f'{option} {path}: it contains {sorted(tensors)}; add a tensor "weights"')
    weights = tensors["weights"].to(torch.float64).numpy()
    if weights.shape not in ((classes, dimension), (classes, dimension + 1)):
        raise ConfigError(
            f"{option} {path}: weights have shape {list(weights.shape)}; write [{classes}, "
            f"{dimension}], or one more column for the biases"
        )
    if not np.isfinite(weights).all():
        raise ConfigError(f"{option} {path}: some weights are not finite; use finite weights")
    if weights.shape[1] == dimension:
        weights = np.pad(weights, ((0, 0), (0, 1)))
    return weights
