"""Records the releases of a fit, and replays the releases on another training set, for audits.

The attacker sees every release, and knows everything about the rows except whether the canary is
in. A head's computation between two releases depends only on its earlier releases and the rows. So
the attacker can compute the sums before noise, with and without the canary, by training on both
data sets and replacing each newly drawn output by the observed output. The attack works for any
kind of head, and detects every change that a canary causes, expected or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import PrivacyError
from dpprobe.privacy.releases import ObservedSteps, Observer
from dpprobe.privacy.sampling import Sampler

Index = npt.NDArray[np.int64]


class Release(NamedTuple):
    """The sums of a mechanism before noise, and the output with noise, for one seed.

    Sums and output are multiples of `step`; None for float32 sums.
    """

    name: str
    sums: torch.Tensor
    output: torch.Tensor
    step: float | None = None

    @property
    def noise(self) -> torch.Tensor:
        """The output minus the sums, float64; exact if sums are on a grid."""
        return self.output.double() - self.sums.double()


class Block(NamedTuple):
    """Consecutive releases of one mechanism by one seed: sums and outputs are [releases, ...].

    Attributes:
      step: the spacing of the grid to which sums and outputs are rounded; None for float32 sums.
    """

    name: str
    sums: torch.Tensor
    outputs: torch.Tensor
    step: float | None = None


Transcript = list[Block]
# Maps a release and the earlier releases of its seed to the output that replaces the release's.
Break = Callable[[Release, list[Release]], torch.Tensor]
ChangeSampler = Callable[[Sampler], Sampler]


def join_blocks(transcript: Transcript) -> Transcript:
    """Returns one block per mechanism, float64 on the CPU, in the order of their first releases."""
    by_name: dict[str, Transcript] = {}
    for block in transcript:
        by_name.setdefault(block.name, []).append(block)
    return [
        Block(
            name,
            _join_tensors([block.sums for block in blocks]),
            _join_tensors([block.outputs for block in blocks]),
            blocks[0].step,
        )
        for name, blocks in by_name.items()
    ]


def _join_tensors(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return (parts[0] if len(parts) == 1 else torch.cat(list(parts))).double().cpu()


class Recorder(Observer):
    """Records the releases and batches of a fit; seeds may train in separate threads.

    Attributes:
      transcripts: the releases of each seed, in order.
      batches: the batches of each seed's sampler.

    Args:
      broken: in a control (a mechanism broken on purpose), computes the output of each release.
      change_sampler: in a control, breaks each sampler.
    """

    def __init__(
        self, broken: Break | None = None, change_sampler: ChangeSampler | None = None
    ) -> None:
        self.transcripts: dict[int, Transcript] = defaultdict(list)
        self.batches: list[SeenBatches] = []
        self._broken, self._change_sampler = broken, change_sampler
        self._earlier: dict[int, list[Release]] = defaultdict(list)
        # A control's output may depend on all earlier releases.
        self.sees_each_step = broken is not None

    def observe_release(
        self,
        name: str,
        seed: int,
        sums: torch.Tensor,
        draw: Callable[[], torch.Tensor],
        step: float | None = None,
    ) -> torch.Tensor:
        sums, output = sums.clone(), draw()
        if self._broken is not None:
            earlier = self._earlier[seed]
            output = self._broken(Release(name, sums, output, step), earlier)
            earlier.append(Release(name, sums, output, step))
        self.transcripts[seed].append(Block(name, sums[None], output[None], step))
        return output

    def observe_steps(
        self, name: str, seed: int, steps: int, shape: tuple[int, ...]
    ) -> ObservedSteps:
        sums, outputs = torch.empty((2, steps, *shape))
        self.transcripts[seed].append(Block(name, sums, outputs))
        return ObservedSteps(sums.numpy(), outputs.numpy(), given=False)

    def replace_sampler(self, seed: int, sampler: Sampler) -> Sampler:  # noqa: ARG002
        sampler = sampler if self._change_sampler is None else self._change_sampler(sampler)
        self.batches.append(SeenBatches(sampler))
        return self.batches[-1]


class SeenBatches:
    """The batches of a sampler, with counts of how often units and pairs of units join.

    Attributes:
      sizes: the size of each batch.
      unit_counts: the number of batches that each unit joined.
      again: [2], units in both of two consecutive batches, which begin at an even or odd step.
      beside: [2], pairs of consecutive units in one batch, which begin at an even or odd unit.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._last = np.zeros(0, dtype=np.int64)
        self.sizes: list[int] = []
        self.unit_counts = np.zeros(0, dtype=np.int64)
        self.again, self.beside = (np.zeros(2, dtype=np.int64) for _ in range(2))

    def draw_block(self, steps: int) -> tuple[Index, Index]:
        units, sizes = self._sampler.draw_block(steps)
        counts = np.bincount(units, minlength=len(self.unit_counts))
        counts[: len(self.unit_counts)] += self.unit_counts
        self.unit_counts = counts
        # Each (step, unit) gets a unique number. The block's first step is 1; the step before is 0.
        stride = len(counts) + 1
        step = np.concatenate(
            [np.zeros(len(self._last), np.int64), np.arange(steps).repeat(sizes) + 1]
        )
        keys = np.concatenate([self._last, units]) + step * stride
        first = step[np.isin(keys + stride, keys)] + len(self.sizes) + 1
        self.again += np.bincount(first % 2, minlength=2)
        left = units[:-1][np.diff(keys[len(self._last) :]) == 1]
        self.beside += np.bincount(left % 2, minlength=2)
        self._last = units[len(units) - int(sizes[-1]) :] if len(sizes) else self._last
        self.sizes += sizes.tolist()
        return units, sizes


class Replayer(Observer):
    """Replaces a head's outputs by the recorded outputs, and stores the head's sums before noise.

    Attributes:
      sums: for each seed and mechanism, the sums so far, in parts [releases, ...].

    Args:
      canaries: the numbers of the canaries' units.
      sampled: the number of canaries in each Poisson batch, 0 or 1.
      change_sampler: as in `Recorder`.
    """

    sees_each_step = False

    def __init__(
        self,
        transcripts: dict[int, Transcript],
        canaries: range,
        sampled: int,
        change_sampler: ChangeSampler | None = None,
    ) -> None:
        self.sums: dict[int, dict[str, list[torch.Tensor]]] = {seed: {} for seed in transcripts}
        self._left = {seed: list(reversed(blocks)) for seed, blocks in transcripts.items()}
        self._canaries = canaries
        self._sampled, self._change_sampler = sampled, change_sampler

    @property
    def joined_sums(self) -> dict[int, dict[str, torch.Tensor]]:
        return {
            seed: {name: _join_tensors(parts) for name, parts in by_name.items()}
            for seed, by_name in self.sums.items()
        }

    def observe_release(
        self,
        name: str,
        seed: int,
        sums: torch.Tensor,
        draw: Callable[[], torch.Tensor],  # noqa: ARG002
        step: float | None = None,  # noqa: ARG002
    ) -> torch.Tensor:
        output = self._take_outputs(name, seed, 1)[0]
        self._keep_sums(name, seed, sums.clone()[None])
        return output

    def observe_steps(
        self, name: str, seed: int, steps: int, shape: tuple[int, ...]
    ) -> ObservedSteps:
        outputs = self._take_outputs(name, seed, steps)
        sums = torch.empty((steps, *shape))
        self._keep_sums(name, seed, sums)
        return ObservedSteps(sums.numpy(), outputs.numpy(), given=True)

    def _keep_sums(self, name: str, seed: int, sums: torch.Tensor) -> None:
        self.sums[seed].setdefault(name, []).append(sums)

    def _take_outputs(self, name: str, seed: int, count: int) -> torch.Tensor:
        """Returns the next outputs of a seed's transcript, [count, ...].

        Raises:
          PrivacyError: if the recorded run's next release belongs to another mechanism.
        """
        parts, missing, left = [], count, self._left[seed]
        while missing:
            if not left or left[-1].name != name:
                raise PrivacyError(
                    f"audit: a release of {name} did not occur in the recorded run: the head "
                    "depends on private rows not only through earlier releases"
                )
            block = left.pop()
            parts.append(block.outputs[:missing])
            if len(block.outputs) > missing:
                left.append(block._replace(outputs=block.outputs[missing:]))
            missing -= len(parts[-1])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def replace_sampler(self, seed: int, sampler: Sampler) -> Sampler:  # noqa: ARG002
        sampler = sampler if self._change_sampler is None else self._change_sampler(sampler)
        return FixedCanaries(sampler, self._canaries, self._sampled)


class FixedCanaries:
    """A sampler's batches, changed so that each contains exactly the first `sampled` canaries."""

    def __init__(self, sampler: Sampler, canaries: range, sampled: int) -> None:
        self._sampler = sampler
        self._canaries = canaries
        self._sampled = sampled

    def draw_block(self, steps: int) -> tuple[Index, Index]:
        units, sizes = self._sampler.draw_block(steps)
        step = np.repeat(np.arange(steps), sizes)
        kept = (units < self._canaries.start) | (units >= self._canaries.stop)
        units, step = units[kept], step[kept]
        sizes = np.bincount(step, minlength=steps)
        for canary in self._canaries[: self._sampled]:
            units = np.insert(units, np.cumsum(sizes), canary)
            sizes = sizes + 1
        return units, sizes
