"""Measures the numbers stated in README, changelog and docs; prints which hold on this machine.

    make claims

Stated numbers are read from their pages, so pages and checks cannot diverge. The script takes about
four minutes on two idle cores, mostly for the demo and for Opacus. With a folder of real data in
DPPROBE_TEST_DATA, accuracies on CIFAR-10 are measured too, which takes another hour.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from copies import VARIABLE, find_data, list_copies
from dpprobe import PrivateClassifier
from dpprobe.heads.kernels.vectors import LANES
from dpprobe.planner.predicted_accuracy import Setting, predict
from dpprobe.results.summary import read_summaries
from heads import PAGES
from report import EXACT

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
Numbers = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of a page that states numbers.

    Attributes:
      pattern: a regular expression of the sentence, with a group for each number; white space
        stands for any white space.
      measure: returns the numbers on this machine; None if required data is missing.
      holds: compares stated with measured numbers.
    """

    page: str
    pattern: str
    measure: Callable[[], Numbers | None]
    holds: Callable[[Numbers, Numbers], bool]

    def read_stated(self) -> Numbers:
        """Returns the stated numbers; raises LookupError if the page has no such sentence."""
        text = (ROOT / self.page).read_text(encoding="utf-8")
        found = re.search(re.sub(r"\s+", r"\\s+", self.pattern), text)
        if found is None:
            raise LookupError(f"{self.page}: no sentence like {self.pattern!r}; correct the claim")
        return tuple(float(number.replace(",", "")) for number in found.groups())


def is_at_most(stated: Numbers, measured: Numbers) -> bool:
    """Accepts up to 1.5 times the stated number, because other programs slow measurements down."""
    return measured[0] <= 1.5 * stated[0]


def is_within(share: float, stated: Numbers, measured: Numbers) -> bool:
    """Accepts sizes and ratios of times that differ by at most a share of the stated number."""
    return all(abs(a - b) <= share * a for a, b in zip(stated, measured, strict=True))


def is_as_printed(stated: Numbers, measured: Numbers) -> bool:
    """Accepts accuracies within 0.3 points: equal seeds give equal numbers up to rounding."""
    return all(abs(a - b) <= 0.3 for a, b in zip(stated, measured, strict=True))


def lies_between(stated: Numbers, measured: Numbers) -> bool:
    """Accepts numbers in the stated range, widened by 20% because the range is rounded."""
    return all(0.8 * stated[0] <= each <= 1.2 * stated[1] for each in measured)


def covers_nearly(stated: Numbers, measured: Numbers) -> bool:
    """Accepts up to ten points less than stated, because the demo has only 50 heads."""
    return measured[0] >= stated[0] - 10


class Demo:
    """One run of the default study in a new folder; its results serve several claims."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.minutes = 0.0
        self._rows: list[dict[str, Any]] = []

    def rows(self) -> list[dict[str, Any]]:
        """Returns one row per head and seed."""
        if not self._rows:
            started = time.monotonic()
            run_study(self._folder, "--configfile", str(ROOT / "config.yaml"))
            self.minutes = (time.monotonic() - started) / 60
            self._rows = read_rows(self._folder)
        return self._rows

    def measure_minutes(self) -> Numbers:
        self.rows()
        return (self.minutes,)

    def measure_accuracy(self) -> Numbers:
        """Returns the best private head at epsilon 1, and the baseline on the same features."""
        rows = self.rows()
        best = max(
            (row["backbone"] for row in rows), key=lambda b: best_mean(rows, 1.0, backbone=b)
        )
        baseline = best_mean(rows, float("inf"), head="nonprivate", backbone=best)
        return best_mean(rows, 1.0), baseline

    def measure_coverage(self) -> Numbers:
        """Returns the share (%) of `auto` heads inside the planner's range for their baseline."""
        rows = self.rows()
        ceilings = {
            backbone: best_mean(rows, float("inf"), head="nonprivate", backbone=backbone) / 100
            for backbone in {row["backbone"] for row in rows}
        }
        heads = [row for row in rows if row["head"] == "auto" and row["private"]]
        inside = [is_in_range(row, ceilings[row["backbone"]]) for row in heads]
        return (100 * sum(inside) / len(inside),)


def is_in_range(row: dict[str, Any], ceiling: float) -> bool:
    setting = Setting(
        n=row["n"],
        classes=row["num_classes"],
        epsilon=row["epsilon"],
        delta=row["delta"],
        dimension=row["dimension"],
    )
    chance = 1 / row["num_classes"]
    low, _, high = predict(setting).predict_accuracy(chance=chance, ceiling=ceiling)
    return bool(low <= row["accuracy"] <= high)


def run_study(folder: Path, *words: str) -> None:
    call = [PYTHON, "-m", "dpprobe", "run", "--cores", "all", "--directory", str(folder), *words]
    subprocess.run(call, cwd=ROOT, check=True, stdout=sys.stderr)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return read_summaries(sorted(folder.glob("results/**/summary/*.parquet"))).to_pylist()


def best_mean(rows: Sequence[dict[str, Any]], epsilon: float, **wanted: Any) -> float:
    """Returns the best mean accuracy over seeds, in percent, among heads at an epsilon."""
    seeds: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row["epsilon"] == epsilon and all(row[name] == wanted[name] for name in wanted):
            seeds.setdefault((row["backbone"], row["method"]), []).append(row["accuracy"])
    return 100 * max(map(statistics.mean, seeds.values()))


def measure_environment() -> Numbers:
    """Returns the size of the Python environment in GB."""
    answer = subprocess.run(["du", "-sk", sys.prefix], check=True, capture_output=True, text=True)
    return (int(answer.stdout.split()[0]) * 1024 / 1e9,)


@cache
def time_steps() -> str:
    """Returns the tables of `bench/heads.py` for batches of 32."""
    call = [PYTHON, "bench/heads.py", "--cases", "batch32"]
    return subprocess.run(call, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure_steps(title: str) -> Numbers:
    """Returns a step's time divided by dpprobe's, at batch size 32, for both sets of data."""
    (row,) = re.findall(rf"^\| {title} \|(.*)\|$", time_steps(), re.MULTILINE)
    return tuple(float(each.split()[0]) for each in row.split("|"))


def measure_cifar10() -> Numbers | None:
    """Returns accuracies on CIFAR-10 with MobileNetV2: `auto` at epsilon 1, and the baseline."""
    data = find_data()
    if data is None:
        return None
    with tempfile.TemporaryDirectory(prefix="dpprobe-claims-") as name:
        folder = Path(name)
        study = {
            "study": "claims",
            "datasets": {"cifar10": {"catalog": "cifar10"}},
            "backbones": {"mobilenetv2": {"catalog": "mobilenetv2"}},
            "methods": {"auto": {"head": "auto"}, "nonprivate": {"head": "nonprivate"}},
            "epsilons": [1],
            "copies": list_copies(data),
        }
        (folder / "claims.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
        run_study(folder, "--configfile", str(folder / "claims.yaml"))
        rows = read_rows(folder)
    return best_mean(rows, 1.0), best_mean(rows, float("inf"), head="nonprivate")


def measure_missing() -> Numbers:
    """Returns two accuracies on digits of which 84% lack a pixel, as means over five seeds.

    Incomplete images are null rows for the first, and have zeros for missing pixels for the second.
    """
    images, digits = load_digits(return_X_y=True)
    scores = []
    for seed in range(5):
        generator, lacking = np.random.default_rng(seed), images.astype(np.float32)
        rows = generator.random(len(images)) < 0.84
        lacking[rows, generator.integers(0, 64, len(images))[rows]] = np.nan
        train, test, labels, truth = train_test_split(
            lacking, digits, test_size=0.2, random_state=seed, stratify=digits
        )
        new = partial(PrivateClassifier, classes=range(10), benchmark=True, random_state=seed)
        null = new(missing="null", delta=1e-5).fit(train, labels)
        zeros = new(delta=1e-5).fit(np.nan_to_num(train), labels)
        scores.append((null.score(test, truth), zeros.score(np.nan_to_num(test), truth)))
    return tuple(100 * np.mean(scores, axis=0))


def list_claims(demo: Demo) -> Iterator[Claim]:
    yield Claim(
        page="README.md",
        pattern=r"minutes to install, ([\d.]+) minutes to train",
        measure=demo.measure_minutes,
        holds=is_at_most,
    )
    yield Claim(
        page="README.md",
        pattern=r"at ε = 1, the best head of the demo reaches ([\d.]+)%, its non-private baseline "
        r"([\d.]+)%",
        measure=demo.measure_accuracy,
        holds=is_as_printed,
    )
    yield Claim(
        page="docs/planner.md",
        pattern=r"below 3,000 images, (\d+)% \(digits\)",
        measure=demo.measure_coverage,
        holds=covers_nearly,
    )
    yield Claim(
        page="README.md",
        pattern=r"minutes to train, and ([\d.]+) GB of disk",
        measure=measure_environment,
        holds=partial(is_within, 0.1),
    )
    yield Claim(
        page="CHANGELOG.md",
        pattern=r"batch size 32 faster than Opacus by a factor of (\d+) to (\d+)",
        measure=partial(measure_steps, "Opacus hooks"),
        holds=lies_between,
    )
    # Ratios depend on the vector width, so only the page of this width is checked.
    if (page := ROOT / "bench/results" / PAGES[LANES]).exists():
        for title in ("Opacus hooks", EXACT):
            yield Claim(
                page=str(page.relative_to(ROOT)),
                pattern=rf"\| {title} \| ([\d.]+) \([^|]*\|[^|]*\|[^|]*\| ([\d.]+) \(",
                measure=partial(measure_steps, title),
                holds=partial(is_within, 0.2),
            )
    yield Claim(
        page="docs/python.md",
        pattern=r"`missing=\"null\"` has ([\d.]+)% and zeros ([\d.]+)% accuracy",
        measure=measure_missing,
        holds=is_as_printed,
    )
    yield Claim(
        page="README.md",
        pattern=r"`auto` reaches ([\d.]+)% at ε = 1, and the non-private baseline ([\d.]+)%",
        measure=measure_cifar10,
        holds=is_as_printed,
    )


def main() -> None:
    """Prints one row per claim; exits with status 1 if a claim does not hold."""
    broken = False
    with tempfile.TemporaryDirectory(prefix="dpprobe-claims-") as folder:
        print("| claim | stated | measured | holds |\n|---|---|---|---|", flush=True)
        for claim in list_claims(Demo(Path(folder))):
            stated, measured = claim.read_stated(), claim.measure()
            if measured is None:
                words = f"not measured: set {VARIABLE}", ""
            else:
                holds = claim.holds(stated, measured)
                broken |= not holds
                words = ", ".join(f"{each:.3g}" for each in measured), "yes" if holds else "no"
            sentence = re.sub(r"\([^()]*\)(?=%| |$)", "…", claim.pattern.replace("\\", ""))
            sentence = " ".join(sentence.replace("|", " ").split())
            shown = ", ".join(f"{each:g}" for each in stated)
            print(
                f"| {claim.page}: {sentence} | {shown} | {' | '.join(words)} |",
                flush=True,
            )
    sys.exit(broken)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
