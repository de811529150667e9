"""Noisy gradient steps on linear heads: what sgd, momentum, adam and lamb have in common.

`clipped_sums` says what is summed, `gradient_options` what is released and at which sensitivity,
`optimisers` what is done with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads import Fitted, Record, fused
from dpprobe.heads.clipped_sums import (
    ClippedSums,
    FullBatch,
    NativeFullBatch,
    NativePoisson,
    PoissonBatches,
    Problem,
)
from dpprobe.heads.gradient_options import GRADIENTS, INIT_DEVIATION, GradientOptions
from dpprobe.heads.optimisers import MakeOptimiser, Sgd, learning_rates, mixing_rates
from dpprobe.heads.rows import Rows
from dpprobe.privacy.noise import GaussianNoise
from dpprobe.privacy.plan import Mechanism
from dpprobe.privacy.randomness import stream
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.sampling import PoissonSampler
from dpprobe.progress import Progress

RECORDS = 20
LOSS_ROWS = 10_000

# A block of steps: so many bytes of noise, which half a core's second-level cache holds, and so
# many expected rows a seed, whoever else trains.
_NOISE_BYTES = 2**19
_BLOCK_ROWS = 2**14
# A normal beyond two standard deviations is drawn again; what is left has this deviation.
_TRUNCATED = 0.87962566103423978


def fit(
    options: GradientOptions,
    rows: Rows,
    releases: Releases,
    optimiser: MakeOptimiser,
    *,
    record: Record | None = None,
) -> Fitted:
    """Runs the plan: batches, clipped sums, noise, the optimiser's steps.

    A sum plus noise is divided by the expected batch size, which is public. On the CPU each seed's
    Poisson batches are its own business, and seeds train side by side on as many threads as
    PyTorch may use; heads on full batches share each block of rows. A seed's head depends on that
    seed alone, but for the last bits of float32 sums on a GPU.

    Raises:
      PrivacyError: when more steps were taken than were priced.
      ConfigError: when training diverged, or initial weights do not fit.
      DataError: for batches of rows that are not in memory.
    """
    if options.engine == "opacus":
        from dpprobe.heads.opacus_engine import fit as fit_opacus

        return fit_opacus(options, rows, releases, optimiser(), record=record)
    mechanism = releases.plan.mechanism(GRADIENTS)
    history = History(rows, mechanism.sample_rate, record, sigmoid=options.loss == "sigmoid")
    problem = Problem(rows, releases.sensitivity(GRADIENTS), options.loss == "sigmoid")
    alone = is_native(rows) and mechanism.sample_rate < 1
    groups = [(seed,) for seed in releases.seeds] if alone else [releases.seeds]
    with ExitStack() as stack, torch.inference_mode():
        threads = torch.get_num_threads() if is_native(rows) else 1
        pool = stack.enter_context(ThreadPoolExecutor(threads)) if threads > 1 else None
        side_by_side = len(groups) > 1
        trainings = [
            Training(options, problem, releases, seeds, optimiser, None if side_by_side else pool)
            for seeds in groups
        ]
        progress = stack.enter_context(
            Progress(mechanism.count, label=f"{options.head}: train", unit="steps")
        )
        taken = 0
        history.add(0, heads_of(trainings))
        for stop in record_steps(mechanism.count):
            steps = _advance(trainings, stop - taken, pool if side_by_side else None)
            releases.count(GRADIENTS, steps)
            progress.advance(steps)
            taken += steps
            history.add(taken, heads_of(trainings))
        weights = finite_weights(heads_of(trainings), options)
    return Fitted(weights=weights, steps=taken, history=history.rows)


def is_native(rows: Rows) -> bool:
    """Whether the sums are `fused`'s, and not PyTorch's."""
    return rows.device.type == "cpu"


def _advance(trainings: Sequence[Training], steps: int, pool: Executor | None) -> int:
    """The next steps of all of them; returns how many they took."""
    before = [training.taken for training in trainings]
    for _ in (map if pool is None else pool.map)(lambda own: own.advance(steps), trainings):
        pass
    taken = {own.taken - start for own, start in zip(trainings, before, strict=True)}
    if len(taken) > 1:
        raise PrivacyError(f"seeds took {sorted(taken)} steps where {steps} are priced")
    return taken.pop()


class Training:
    """Heads on their way, one a seed, which share an optimiser and every block of steps.

    Attributes:
      taken: steps.
    """

    def __init__(
        self,
        options: GradientOptions,
        problem: Problem,
        releases: Releases,
        seeds: Sequence[int],
        optimiser: MakeOptimiser,
        pool: Executor | None,
    ) -> None:
        mechanism, rows = releases.plan.mechanism(GRADIENTS), problem.rows
        start = initial_weights(options, rows, seeds)
        size = start[0].numel()
        self.taken = 0
        self._native = is_native(rows)
        self._shape = start.shape
        self._weights, self._release = self._buffer(rows.device), self._buffer(rows.device)
        self._own(self._weights).copy_(start)
        self._rates = learning_rates(options, mechanism.count)
        self._mixing = mixing_rates(options, mechanism.count)
        self._average = None if self._mixing is None else self._weights.clone()
        self._divisor = mechanism.sample_rate * rows.n
        self._lengths = (self._rates / self._divisor).astype(np.float32)
        self._mixed = np.zeros(0) if self._mixing is None else self._mixing
        self._mixed = self._mixed.astype(np.float32)
        self._block = block_steps(size, mechanism, rows.n)
        self._deviation = releases.deviation(GRADIENTS)
        self._noise = GaussianNoise(seeds, size, rows.device)
        self._optimiser = optimiser()
        self._sums = self._sums_of(problem, mechanism, seeds, pool)

    def _buffer(self, device: torch.device) -> torch.Tensor:
        if self._native:
            return fused.padded(*self._shape)
        return torch.zeros(self._shape, device=device)

    def _own(self, buffer: torch.Tensor) -> torch.Tensor:
        """[seeds, classes, d + 1] of a buffer."""
        return buffer[:, : self._shape[1], : self._shape[2]]

    def _sums_of(
        self, problem: Problem, mechanism: Mechanism, seeds: Sequence[int], pool: Executor | None
    ) -> ClippedSums:
        if mechanism.sample_rate == 1:
            if self._native:
                return NativeFullBatch(problem, self._weights, pool)
            return FullBatch(problem, self._weights)
        samplers = [
            PoissonSampler(problem.rows.n, mechanism.sample_rate, stream(seed, "sampling"))
            for seed in seeds
        ]
        if self._native:
            (sampler,) = samplers
            return NativePoisson(problem, self._weights, sampler, pool)
        return PoissonBatches(problem, self._weights, samplers)

    @property
    def heads(self) -> torch.Tensor:
        """[seeds, classes, d + 1]: what would be returned now."""
        return self._own(self._weights if self._average is None else self._average)

    @torch.inference_mode()
    def advance(self, steps: int) -> None:
        """The next `steps` steps of every seed."""
        stop = self.taken + steps
        while self.taken < stop:
            block = min(self._block, stop - self.taken)
            drawn = self._noise.draw_padded(block, self._deviation)
            self._sums.prepare(block)
            if not self._descend(drawn):
                own = drawn[..., : self._noise.size].unflatten(2, self._shape[1:])
                for noise in own.unbind(1):
                    self._step(noise)

    def _descend(self, drawn: torch.Tensor) -> bool:
        """A block of plain steps without coming back to Python; False where that cannot be."""
        if not isinstance(self._sums, NativePoisson) or type(self._optimiser) is not Sgd:
            return False
        batches, steps = self._sums.batches, drawn.shape[1]
        if batches is None or batches.sizes.max() > fused.CHUNK * 8:
            return False
        window = slice(self.taken, self.taken + steps)
        fused.descend(
            *batches.arrays,
            batches.rows,
            batches.sizes,
            drawn.numpy()[0],
            self._lengths[window],
            self._weights.numpy(),
            self._shape[1],
            self._release.numpy(),
            self._mixed[window],
            (self._weights if self._average is None else self._average).numpy(),
        )
        self.taken += steps
        return True

    def _step(self, noise: torch.Tensor) -> None:
        release, weights = self._own(self._release), self._own(self._weights)
        release.copy_(noise)
        self._sums.add_to(self._release)
        release.div_(self._divisor)
        self._optimiser.step(weights, release, float(self._rates[self.taken]))
        if self._average is not None and self._mixing is not None:
            self._own(self._average).lerp_(weights, float(self._mixing[self.taken]))
        self.taken += 1


def heads_of(trainings: Sequence[Training]) -> torch.Tensor:
    """[seeds, classes, d + 1], a copy."""
    return torch.cat([training.heads for training in trainings])


def block_steps(size: int, mechanism: Mechanism, rows: int) -> int:
    """Steps whose noise and batches are drawn at a time.

    On a GPU noise depends on it, so it must not depend on how many seeds train together.

    Args:
      size: numbers in one head.
      mechanism: the gradients.
      rows: in the dataset.
    """
    steps = _NOISE_BYTES // (4 * size)
    if mechanism.sample_rate < 1:
        steps = min(steps, int(_BLOCK_ROWS / (mechanism.sample_rate * rows)))
    return max(1, steps)


def record_steps(steps: int) -> list[int]:
    """About twenty steps on the way, evenly spread, and the last one."""
    parts = min(steps, RECORDS)
    return [round(steps * part / parts) for part in range(1, parts + 1)]


def finite_weights(weights: torch.Tensor, options: GradientOptions) -> npt.NDArray[np.float32]:
    """The weights as NumPy's.

    Raises:
      ConfigError: when training diverged.
    """
    array: npt.NDArray[np.float32] = weights.cpu().numpy()
    if not np.isfinite(array).all():
        raise ConfigError(
            f"head {options.head}: training diverged at learning_rate {options.learning_rate:g}; "
            "write a smaller one"
        )
    return array


def initial_weights(options: GradientOptions, rows: Rows, seeds: Sequence[int]) -> torch.Tensor:
    """Float32 [seeds, classes, d + 1], as `init` and `init_bias` say.

    Raises:
      ConfigError: when a file's weights do not fit.
    """
    classes, dimension = rows.num_classes, rows.dimension
    start = np.zeros((len(seeds), classes, dimension + 1))
    for own, seed in zip(start, seeds, strict=True):
        generator = stream(seed, "init")
        if options.init == "torch":
            bound = 1 / math.sqrt(dimension)
            own[:] = generator.uniform(-bound, bound, size=own.shape)
        elif options.init == "scaled":
            deviation = INIT_DEVIATION if options.init_scale is None else options.init_scale
            own[:, :-1] = generator.normal(0, deviation, size=(classes, dimension))
        elif options.init == "lecun_normal":
            own[:, :-1] = _truncated_normal(generator, (classes, dimension))
            own[:, :-1] /= math.sqrt(dimension)
    if options.init == "file":
        (path,) = options.input_files()
        scale = 1.0 if options.init_scale is None else options.init_scale
        start[:] = scale * weights_from_file(path, classes, dimension)
    if options.init_bias is not None:
        start[..., -1] = options.init_bias
    return torch.from_numpy(start).to(device=rows.device, dtype=torch.float32)


def _truncated_normal(
    generator: np.random.Generator, shape: tuple[int, ...]
) -> npt.NDArray[np.float64]:
    """Normals within two standard deviations, of standard deviation 1 (Flax's `lecun_normal`)."""
    values = generator.standard_normal(shape)
    while (beyond := np.abs(values) > 2).any():
        values[beyond] = generator.standard_normal(int(beyond.sum()))
    return values / _TRUNCATED


def weights_from_file(path: str, classes: int, dimension: int) -> npt.NDArray[np.float64]:
    """Public weights [classes, d + 1], biases 0 where the file has none.

    Raises:
      ConfigError: when they cannot be read or do not fit.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(
            f"init_file {path}: cannot be read ({error}); name a safetensors file"
        ) from None
    if "weights" not in tensors:
        raise ConfigError(
            f'init_file {path}: it holds {sorted(tensors)}; a tensor "weights" is needed'
        )
    weights = tensors["weights"].astype(np.float64)
    if weights.shape not in ((classes, dimension), (classes, dimension + 1)):
        raise ConfigError(
            f"init_file {path}: weights {list(weights.shape)}; [{classes}, {dimension}] is "
            "needed, or one column more for the biases"
        )
    if not np.isfinite(weights).all():
        raise ConfigError(f"init_file {path}: weights that are not finite; write finite ones")
    if weights.shape[1] == dimension:
        weights = np.pad(weights, ((0, 0), (0, 1)))
    return weights


class History:
    """What is recorded while training; nothing is computed where there is nobody to record for."""

    def __init__(
        self, rows: Rows, sample_rate: float, record: Record | None, *, sigmoid: bool = False
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self._data = rows
        self._sample_rate = sample_rate
        self._record = record
        self._sigmoid = sigmoid

    def add(self, step: int, weights: torch.Tensor) -> None:
        """One record a seed: the loss on the first 10,000 training rows, what `record` returns."""
        if self._record is None:
            return
        losses = self._losses(weights)
        epoch = step * self._sample_rate
        further = self._record(step, weights) or {}
        for index, loss in enumerate(losses):
            own = {name: float(values[index]) for name, values in further.items()}
            self.rows.append(
                {"seed_index": index, "step": step, "epoch": epoch, "train_loss": loss, **own}
            )

    def _losses(self, weights: torch.Tensor) -> list[float]:
        total = torch.zeros(len(weights), dtype=torch.float64, device=weights.device)
        flat = weights.flatten(0, 1)
        for start, stop, block in self._data.blocks(12 * len(flat)):
            if start >= LOSS_ROWS:
                break
            logits = torch.addmm(flat[:, -1], block, flat[:, :-1].T)
            logits = logits.view(-1, *weights.shape[:2])
            total += self._cross_entropy(logits, start, stop)
        return [float(value) for value in total / stop]

    def _cross_entropy(self, logits: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """[seeds]: the sum over rows, of logits [m, seeds, classes]."""
        if self._sigmoid:
            targets = self._data.targets(start, stop).unsqueeze(1).expand_as(logits)
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, targets, reduction="none"
            )
            return losses.sum((0, 2))
        labels = self._data.labels_block(start, stop).unsqueeze(1).expand(-1, logits.shape[1])
        losses = torch.nn.functional.cross_entropy(logits.movedim(2, 1), labels, reduction="none")
        return losses.sum(0)


def without_loss(
    weights: torch.Tensor, record: Record | None, *, step: int, epoch: float
) -> list[dict[str, Any]]:
    """The history of heads [seeds, classes, d + 1] that descend no loss: one record a seed."""
    if record is None:
        return []
    further = record(step, weights) or {}
    return [
        {"seed_index": index, "step": step, "epoch": epoch}
        | {name: float(values[index]) for name, values in further.items()}
        for index in range(len(weights))
    ]
