"""The steps of DP training of a network, and the state for checkpoints.

The sampling rate and the divisor come from the plan, never from the data. Optimisers and iterate
averages only post-process noisy sums. Trained networks are only for benchmarks, because sums and
noise are float32 (see `engine_limits` in `options`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dpprobe.backbones.network_forward import CPU_PIXELS
from dpprobe.devices import use_full_float32
from dpprobe.finetune.checkpoint import State
from dpprobe.finetune.gradients import ClippedSums
from dpprobe.finetune.inputs import Inputs
from dpprobe.finetune.losses import row_losses
from dpprobe.finetune.network_optimisers import OPTIMISERS
from dpprobe.finetune.options import Options
from dpprobe.finetune.ranks import ALONE, Ranks
from dpprobe.heads.gradient_options import GRADIENTS
from dpprobe.heads.schedules import learning_rates, mixing_rates
from dpprobe.privacy.plan import Mechanism
from dpprobe.privacy.randomness import open_stream
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.sampling import PoissonSampler, RowIndices

if TYPE_CHECKING:
    from dpprobe.finetune.fine_tuned_network import FineTunedNetwork
    from dpprobe.finetune.opacus_sums import OpacusSums

Tensors = dict[str, torch.Tensor]


class Training:
    def __init__(
        self,
        options: Options,
        network: FineTunedNetwork,
        inputs: Inputs,
        releases: Releases,
        mechanism: Mechanism,
        *,
        physical_batch: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.network, self.taken, self._ranks = network, 0, ranks
        self._options, self._inputs, self._releases = options, inputs, releases
        self._mechanism = mechanism
        self._parameters = {name: one.detach() for name, one in network.trained.items()}
        self._device = next(iter(self._parameters.values())).device
        self._sigmoid = options.loss == "sigmoid"
        # The divisor comes from the plan's public n and rate, because a batch's size is private.
        self._divisor = mechanism.sample_rate * releases.plan.n
        self._rows_at_once = rows_at_once(network, physical_batch, inputs.views or 1)
        self._opacus = self._make_opacus(network)
        if self._opacus is not None:
            self._rows_at_once = min(self._rows_at_once, self._opacus.most_rows)
        self._sums: ClippedSums | OpacusSums = self._opacus or ClippedSums(
            network,
            sigmoid=self._sigmoid,
            max_grad_norm=releases.sensitivity(GRADIENTS),
            clipping=options.clipping if releases.plan.private else "fixed",
            precision=options.precision,
        )
        self._total = torch.zeros(self._sums.size, dtype=torch.float32, device=self._device)
        parts = self._total.split([one.numel() for one in self._parameters.values()])
        self._gradients = {
            name: part.view(one.shape)
            for (name, one), part in zip(self._parameters.items(), parts, strict=True)
        }
        self._deviation = releases.noise_deviation(GRADIENTS)
        self._noise = releases.make_noise(GRADIENTS, self._sums.size) if ranks.leads else None
        (seed,) = releases.seeds
        generator = open_stream(seed, "sampling")
        self._sampler = PoissonSampler(inputs.n, mechanism.sample_rate, generator)
        self._weights = row_weights(options, inputs)
        self._longest = None if releases.plan.private else options.max_batch_grad_norm
        self._optimisers = {name: OPTIMISERS[options.optimiser]() for name in self._parameters}
        self._rates = learning_rates(options, mechanism.count)
        self._mixing = mixing_rates(options, mechanism.count)
        self._average: Tensors = {}
        if self._mixing is not None:
            self._average = {name: one.clone() for name, one in self._parameters.items()}

    def _make_opacus(self, network: FineTunedNetwork) -> OpacusSums | None:
        if self._options.engine != "opacus":
            return None
        from dpprobe.finetune.opacus_sums import OpacusSums  # imports Opacus, which takes time

        return OpacusSums(
            network,
            sigmoid=self._sigmoid,
            max_grad_norm=self._releases.sensitivity(GRADIENTS),
            noise_multiplier=self._releases.noise_multiplier(GRADIENTS),
            divisor=self._divisor,
        )

    @torch.no_grad()
    def take_step(self, advance: Callable[[int], None]) -> None:
        """Takes one noisy step, even if the batch is empty; `advance` gets counts of rows done."""
        self._releases.count_releases(GRADIENTS, 1)
        self._total.zero_()
        drawn = self._drawn_rows()
        self._ranks.require_equal("the batches", [torch.from_numpy(drawn)])
        for rows, batch in self._physical_batches(self._ranks.share_of(drawn)):
            self._add_batch(rows, batch)
            advance(len(rows) * self._ranks.count)
        self._ranks.add_up(self._total)
        if self._noise is not None:  # only on rank 0
            noise = self._noise.draw_steps(1, self._deviation)[0, 0].to(self._device)
            if self._opacus is None:
                self._total.add_(noise).div_(self._divisor)
            else:
                self._total.copy_(self._opacus.release_mean(noise))
        self._ranks.send_from_leader(self._total)
        if self._longest is not None:
            norm = torch.linalg.vector_norm(self._total, dtype=torch.float64)
            self._total.mul_((self._longest / norm).clamp_(max=1))
        self._descend_once()
        self.taken += 1

    def _descend_once(self) -> None:
        rate = float(self._rates[self.taken])
        for name, parameter in self._parameters.items():
            factor = 1.0 if name.startswith("head.") else self._options.backbone_rate
            self._optimisers[name].step(parameter, self._gradients[name], rate * factor)
        for name, average in self._average.items():
            assert self._mixing is not None
            average.lerp_(self._parameters[name], float(self._mixing[self.taken]))

    def _drawn_rows(self) -> RowIndices:
        """Samples units for the next step; returns their rows, without ignored rows."""
        inputs = self._inputs
        if self._mechanism.sample_rate == 1:
            rows = np.arange(inputs.rows)
        else:
            rows, sizes = self._sampler.draw_block(1)
            if inputs.units is not None:
                rows, _ = inputs.units.rows_of(rows, sizes)
        return rows if inputs.kept is None else rows[inputs.kept[rows]]

    def _physical_batches(self, rows: RowIndices) -> Iterator[tuple[RowIndices, torch.Tensor]]:
        """Yields a step's rows in parts; a thread prefetches the next part if inputs are slow."""
        size, step = self._rows_at_once, self.taken
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        if not self._inputs.slow or len(parts) < 2:
            for part in parts:
                yield part, self._inputs.read_batch(part, step=step)
            return
        with ThreadPoolExecutor(1, "inputs") as pool:
            ahead = pool.submit(self._inputs.read_batch, parts[0], step=step)
            for place, part in enumerate(parts):
                batch = ahead.result()
                if place + 1 < len(parts):
                    ahead = pool.submit(self._inputs.read_batch, parts[place + 1], step=step)
                yield part, batch

    def _add_batch(self, rows: RowIndices, batch: torch.Tensor) -> None:
        index = torch.from_numpy(rows)
        weights = None
        if self._weights is not None:
            weights = self._weights[index].to(self._device, non_blocking=True)
        batch = batch.to(self._device, non_blocking=True)
        with torch.enable_grad():
            self._sums.add_rows(self._total, batch, self._batch_labels(index), weights)

    def _batch_labels(self, index: torch.Tensor) -> torch.Tensor:
        labels = self._inputs.labels[index].to(self._device, non_blocking=True)
        if not self._sigmoid:
            return labels
        if labels.ndim == 1:
            labels = torch.nn.functional.one_hot(labels, self._inputs.num_classes)
        return labels.to(torch.float32)

    def copy_result(self) -> Tensors:
        """Returns copies of the parameters that training would return now."""
        result = {name: one.clone() for name, one in (self._average or self._parameters).items()}
        if shifts := self._options.bias_shifts():
            result["head.bias"] += torch.tensor(shifts, device=self._device)
        return result

    @torch.no_grad()
    def put_parameters(self, parameters: Mapping[str, torch.Tensor]) -> Tensors:
        """Sets parameters of the network; returns copies of the replaced values."""
        before = {name: one.clone() for name, one in self._parameters.items()}
        for name, one in self._parameters.items():
            one.copy_(parameters[name])
        return before

    @torch.no_grad()
    def mean_loss(self, rows: RowIndices) -> float:
        """Returns the mean loss on unaugmented rows, which has no privacy guarantee."""
        total = 0.0
        for start in range(0, len(rows), self._rows_at_once):
            part = rows[start : start + self._rows_at_once]
            batch = self._inputs.read_batch(part, step=None).to(self._device)
            scores, labels = self.network.module(batch), self._batch_labels(torch.from_numpy(part))
            total += float(row_losses(scores, labels, sigmoid=self._sigmoid).sum())
        return total / len(rows)

    def check_ranks(self) -> None:
        """Raises PrivacyError unless all ranks have the same parameters and number of steps."""
        taken = torch.tensor([self.taken])
        self._ranks.require_equal("the weights", [taken, *self._parameters.values()])

    @property
    def is_finite(self) -> bool:
        return all(bool(one.isfinite().all()) for one in self._parameters.values())

    def collect_state(self, values: Mapping[str, Any]) -> State:
        """Returns the state on which next steps depend, with `values`; does not copy tensors.

        Only rank 0 has the whole state, because only rank 0 draws noise.
        """
        assert self._noise is not None, "not on rank 0"
        tensors = {f"parameter/{name}": one for name, one in self._parameters.items()}
        tensors |= {f"average/{name}": one for name, one in self._average.items()}
        tensors |= {f"noise/{name}": one for name, one in self._noise.copy_state().items()}
        numbers: dict[str, dict[str, int]] = {}
        for name, optimiser in self._optimisers.items():
            for key, one in optimiser.copy_state().items():
                if isinstance(one, torch.Tensor):
                    tensors[f"optimiser/{key}/{name}"] = one
                else:
                    numbers.setdefault(name, {})[key] = one
        ours = {"taken": self.taken, "sampler": self._sampler.copy_state(), "optimisers": numbers}
        return State(tensors=tensors, values={**values, **ours})

    def restore_state(self, state: State) -> None:
        """Continues from a `state` of training with the same fingerprint.

        Raises PrivacyError if the state has more steps than the plan.
        """
        self._releases.count_releases(GRADIENTS, state.values["taken"])
        self.taken = state.values["taken"]
        self.put_parameters(_tensors_under("parameter/", state.tensors))
        for name, one in _tensors_under("average/", state.tensors).items():
            self._average[name].copy_(one)
        self._sampler.restore_state(state.values["sampler"])
        if self._noise is not None:
            self._noise.restore_state(_tensors_under("noise/", state.tensors))
        numbers = state.values["optimisers"]
        parts: dict[str, dict[str, torch.Tensor | int]] = {
            name: dict(numbers.get(name, {})) for name in self._optimisers
        }
        for path, one in _tensors_under("optimiser/", state.tensors).items():
            key, _, name = path.partition("/")
            parts[name][key] = one.to(self._device)
        for name, optimiser in self._optimisers.items():
            optimiser.restore_state(parts[name])


def rows_at_once(network: FineTunedNetwork, physical_batch: int, views: int) -> int:
    """Returns how many rows to pass through a network at once: `physical_batch` over views.

    On a CPU, batches of images are no larger than in extraction, as memory limits the speed.
    """
    most = physical_batch // views
    on_cpu = next(iter(network.trained.values())).device.type == "cpu"
    if network.from_images and on_cpu:
        _, height, width = network.shape
        most = min(most, CPU_PIXELS // (height * width * views))
    return max(1, most)


@torch.no_grad()
@use_full_float32()
def network_scores(
    network: FineTunedNetwork, inputs: Inputs, index: RowIndices, *, physical_batch: int
) -> torch.Tensor:
    """Returns the scores of unaugmented rows: float32 [m, K], on the CPU."""
    device = next(iter(network.trained.values())).device
    size = rows_at_once(network, physical_batch, 1)
    parts = []
    for start in range(0, len(index), size):
        batch = inputs.read_batch(index[start : start + size], step=None)
        parts.append(network.module(batch.to(device)).float().cpu())
    return torch.cat(parts)


def row_weights(options: Options, inputs: Inputs) -> torch.Tensor | None:
    """Returns weights for clipped per-example gradients, float32 [rows]; None if all are 1.

    A unit's row weights sum to at most 1, and a class's weight is at most 1: see `heads.balance`.
    """
    weights = None if inputs.units is None else torch.from_numpy(inputs.units.weights)
    if options.class_weights:
        of_class = torch.tensor(options.class_weights, dtype=torch.float32)
        of_row = of_class[inputs.labels.cpu()]
        weights = of_row if weights is None else weights * of_row
    return weights


def _tensors_under(prefix: str, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    return {
        name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)
    }
