"""Bounds what a better or cheaper second moment could bring `momentum`, on any pair.

Rows are centred and whitened with the true mean and the true second moment, for which no budget is
spent, and whitening, clipping norm and learning rate are chosen in hindsight, on the test rows. No
private method of this kind can do so; one that estimates the moment, however cleverly, stays below.

    .venv/bin/python bench/whitening_bound.py --pairs cifar10_mobilenet     # after bench/pairs.py
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dpprobe import artifacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.registry import method_options
from dpprobe.heads.ruled_options import RuledOptions
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.randomness import cell_seed
from pairs import Pair, add_files, chosen
from pairs_rows import Features, Files
from pairs_scores import DELTA, Scores, planned

OUTPUT = Path(__file__).resolve().parent / "results" / "whitening_bound.md"
EPSILONS = (0.1, 0.5, 1.0, 2.0)
EXPONENTS = (0.25, 0.4, 0.5)
# Over the mean eigenvalue.
RIDGES = (0.3, 3.0, 30.0)
CLIPPING = (0.5, 1.0)
RATES = (0.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A whitening and options; `rate` multiplies the default learning rate."""

    exponent: float
    ridge: float
    clip: float = 0.7
    rate: float = 1.0

    def __str__(self) -> str:
        return f"w {self.exponent:g}, ridge {self.ridge:g}, C {self.clip:g}, rate x {self.rate:g}"


class Oracle:
    """Trains `momentum` on a pair's rows, whitened by what no private method knows."""

    def __init__(self, pair: Pair, data: Features, files: Files, seeds: int) -> None:
        self.pair, self.data, self.files, self.seeds = pair, data, files, seeds
        rows = unit(data.train)
        self.centre = rows.mean(0)
        self.train, self.test = unit(rows - self.centre), unit(unit(data.test) - self.centre)
        moment = self.train.double().T @ self.train.double() / len(self.train)
        self.values, self.vectors = torch.linalg.eigh(moment)

    def whitened(self, trial: Trial) -> tuple[torch.Tensor, torch.Tensor]:
        ridge = trial.ridge * float(self.values.mean())
        factors = (self.values.clamp(min=0) + ridge) ** -trial.exponent
        matrix = ((self.vectors * factors) @ self.vectors.T).float()
        return unit(self.train @ matrix), unit(self.test @ matrix)

    def accuracy(self, trial: Trial, epsilon: float) -> float:
        """Returns the mean test accuracy over the seeds, in per cent."""
        values = {"head": "momentum", "normalize": "l2", "max_grad_norm": trial.clip}
        options = method_options(values)
        plan = calibrate(
            options.mechanisms(self.pair.n), n=self.pair.n, epsilon=epsilon, delta=DELTA,
            accountant="pld", cache=self.files.cache / "plans",
        )  # fmt: skip
        assert isinstance(options, RuledOptions)
        (gradients,) = plan.mechanisms
        by_rule = options.rate_on(
            gradients,
            noise=gradients.noise_multiplier * gradients.sensitivity / self.pair.n,
            classes=self.pair.classes,
            dimension=self.pair.dimension,
        )
        options = method_options(values | {"learning_rate": trial.rate * by_rule})
        train, test = self.whitened(trial)
        rows = TrainingSet(train, self.data.train_labels, self.pair.classes)
        seeds = [cell_seed(["bench/whitening_bound.py"], seed) for seed in range(self.seeds)]
        scores = torch.from_numpy(score_rows(fit_heads(options, rows, plan, seeds), test))
        right = scores.argmax(2) == self.data.test_labels
        return 100 * float(right.double().mean())

    def best(self, epsilon: float) -> tuple[Trial, float]:
        """Returns the best whitening, then with it the best clipping norm, then the best rate."""
        tried: dict[Trial, float] = {}

        def leading(trials: Sequence[Trial]) -> Trial:
            for trial in trials:
                tried[trial] = self.accuracy(trial, epsilon)
                print(f"{self.pair.name} {epsilon:g}: {trial}: {tried[trial]:.1f}", flush=True)
            return max(tried, key=lambda trial: tried[trial])

        plain = Trial(exponent=0.0, ridge=1.0)
        whitenings = [
            Trial(exponent=exponent, ridge=ridge) for exponent in EXPONENTS for ridge in RIDGES
        ]
        trial = leading([plain, *whitenings])
        trial = leading([replace(trial, clip=clip) for clip in CLIPPING])
        trial = leading([replace(trial, rate=rate) for rate in RATES])
        return trial, tried[trial]


def unit(rows: torch.Tensor) -> torch.Tensor:
    """Returns the rows, each over its length; a null row stays one."""
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1e-12)


def main() -> None:
    """Prints each trial, and writes the table of the best."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_files(parser)
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    files, pairs = chosen(arguments)
    scores = Scores(files.cache / "scores")
    lines = [NOTES, ""]
    for pair in pairs:
        lines += [f"## {pair.title}", "", *HEADER]
        oracle = Oracle(pair, pair.features(files), files, arguments.seeds)
        for epsilon in arguments.epsilons:
            trial, accuracy = oracle.best(epsilon)
            auto = scores.of(planned(pair, "auto", {"head": "auto"}, epsilon, files), range(5))
            known = [score.accuracy for score in auto if score.accuracy is not None]
            ours = f"{statistics.mean(known):.1f}" if known else ""
            lines.append(f"| {epsilon:g} | {ours} | {accuracy:.1f} | {trial} |")
        lines.append("")
    artifacts.write_text(arguments.output, "\n".join(lines))
    print(f"written: {arguments.output}", flush=True)


HEADER = (
    "| epsilon | `auto` | with the true moment, best in hindsight | chosen on the test rows |",
    "|---|---|---|---|",
)
NOTES = """\
# What a better second moment could bring

Written by bench/whitening_bound.py. Test accuracy in per cent of `momentum` on rows that are
centred and whitened with the true mean and the true second moment of the training rows, for which
no budget is spent; the whitening's exponent and ridge, the clipping norm and the learning rate are
the best of 14 on the test rows. None of that is private. A private head that estimates the moment,
and does not choose on the test rows, is expected below it: what is left to gain by better
estimates of it, cheaper ones, or better fixed options is no more than the difference."""


if __name__ == "__main__":
    main()
