"""Compares `engine: opacus` with dpprobe's own engine: weights, epsilon and time of linear heads.

Random features of norm 1, one thread, processor time in turns. Writes Markdown:

    .venv/bin/python bench/opacus_engine.py              # some minutes
    .venv/bin/python bench/opacus_engine.py --no-write   # print only
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from clock import Clock, number
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.gradient_options import GRADIENTS
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.target import Target

RESULTS = Path(__file__).resolve().parent / "results" / "opacus_engine.md"
ROWS, DIMENSION, CLASSES, EPSILON, DELTA = 2_000, 768, 10, 1.0, 1e-5
OURS, OPACUS = ENGINES = ("closed_form", "opacus")
HEADS = ("sgd", "momentum", "adam", "lamb")
BATCHES: tuple[int | str, ...] = (32, 512, "full")
STEPS = (1, 10, 100)
# Steps of a timed fit: about as long for each batch size.
TIMED: dict[int | str, int] = {32: 1000, 512: 50, "full": 15}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-write", dest="write", action="store_false")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((ROWS, DIMENSION), dtype=np.float32)
    labels = torch.from_numpy(generator.integers(CLASSES, size=ROWS))
    data = TrainingSet(torch.from_numpy(rows), labels, CLASSES)
    with tempfile.TemporaryDirectory() as cache:
        lines = [
            "# Engine opacus beside closed_form\n",
            f"`bench/opacus_engine.py` on a CPU, 1 thread, torch {torch.__version__}, Opacus "
            f"{metadata.version('opacus')}: {ROWS:,} random rows of dimension {DIMENSION}, "
            f"{CLASSES} classes, ε = {EPSILON:g}, δ = {DELTA:g}, rows of norm 1.\n",
            *compare_weights(data, Path(cache)),
            *compare_epsilons(Path(cache)),
            *compare_times(data, Path(cache), arguments.rounds),
        ]
    print("\n".join(lines))
    if arguments.write:
        RESULTS.write_text("\n".join(lines), encoding="utf-8")


def make_plan(head: str, batch: int | str, steps: int, cache: Path) -> Plan:
    options = method_options(make_values(head, batch, steps))
    target = Target(n=ROWS, epsilon=EPSILON, delta=DELTA)
    return calibrate(options.list_mechanisms(ROWS), target, cache=cache, checked=False)


def make_values(head: str, batch: int | str, steps: int) -> dict[str, object]:
    return {
        "head": head,
        "batch_size": batch,
        "steps": steps,
        "normalize": "l2",
        "init": "torch",
    }


def fit(
    data: TrainingSet, head: str, batch: int | str, plan: Plan, engine: str
) -> npt.NDArray[np.float32]:
    values = make_values(head, batch, plan.find_mechanism(GRADIENTS).count)
    options = method_options({**values, "engine": engine})
    fitted = fit_heads(options, data, plan, [cell_seed("opacus", 0)])
    assert fitted.steps == plan.steps
    return fitted.weights


def compare_weights(data: TrainingSet, cache: Path) -> Iterator[str]:
    yield "## Largest difference of the weights, over the largest weight\n"
    yield f"| head | batch | steps: {' | '.join(map(str, STEPS))} |"
    yield "|---|---|" + "---|" * len(STEPS)
    for head in HEADS:
        for batch in BATCHES[::2]:
            cells = []
            for steps in STEPS:
                plan = make_plan(head, batch, steps, cache)
                ours, theirs = (fit(data, head, batch, plan, engine) for engine in ENGINES)
                cells.append(f"{np.abs(ours - theirs).max() / np.abs(ours).max():.0e}")
            yield f"| `{head}` | {batch} | {' | '.join(cells)} |"


def compare_epsilons(cache: Path) -> Iterator[str]:
    yield "\n## ε of the plan, by Opacus's accountants\n"
    yield "GDP is exact for full batches; for samples it is a limit, and too small.\n"
    yield "| batch | steps | plan (`pld`) | PRV | RDP | GDP |"
    yield "|---|---|---|---|---|---|"
    for batch, steps in ((32, 1250), (512, 100), ("full", 100)):
        plan = make_plan("sgd", batch, steps, cache)
        cells = [f"{value:.4f}" for value in (plan.realised_epsilon, *price(plan))]
        yield f"| {batch} | {steps:,} | {' | '.join(cells)} |"


def price(plan: Plan) -> list[float]:
    """Returns the plan's epsilon by Opacus's PRV, RDP and GDP accountants."""
    from opacus.accountants import GaussianAccountant, PRVAccountant, RDPAccountant

    mechanism = plan.find_mechanism(GRADIENTS)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in (PRVAccountant, RDPAccountant, GaussianAccountant):
            accountant = kind()
            accountant.history = [
                (mechanism.noise_multiplier, mechanism.sample_rate, mechanism.count)
            ]
            found.append(float(accountant.get_epsilon(delta=plan.delta)))
    return found


def compare_times(data: TrainingSet, cache: Path, rounds: int) -> Iterator[str]:
    yield "\n## Time of a fit by `opacus` over `closed_form`\n"
    yield "Medians of rounds in turns; in brackets the lowest and highest round.\n"
    yield "| head | batch | times |"
    yield "|---|---|---|"
    clock = Clock("cpu")
    for head in HEADS[:2]:
        for batch in BATCHES:
            plan = make_plan(head, batch, TIMED[batch], cache)
            work = [partial(fit, data, head, batch, plan, engine) for engine in (OPACUS, OURS)]
            rows = [[clock.seconds(each) for each in work] for _ in range(rounds + 1)]
            ratios = [theirs / ours for theirs, ours in rows[1:]]  # the first round compiles
            extremes = f"{number(min(ratios))} to {number(max(ratios))}"
            yield f"| `{head}` | {batch} | {number(statistics.median(ratios))} ({extremes}) |"


if __name__ == "__main__":
    main()
