"""Accuracies of heads on pairs: trained by the package's own code, kept in a file per pair.

A line is a fit: its key is a hash of the features, the head's resolved options, the plan's
mechanisms and the head's code, so that a run that was killed continues, and a head that has changed
is trained again, it alone. `head: auto` has the key of the head that it chose.
"""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import dpprobe
from dpprobe import artifacts
from dpprobe.errors import ConfigError, DataError
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS, method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.target import Target
from pairs import Pair
from pairs_rows import Features, Files

DELTA = 1e-5
ROOM = "dpprobe.heads"
# Modules without a head's mathematics: what they decide stands in the options and in the plan.
_BESIDE = {
    f"{ROOM}.{name}" for name in ("auto", "auto_rule", "balance", "facts", "options", "registry")
}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A head to be trained on a pair at an epsilon.

    Attributes:
      name: in tables.
      options: resolved: of `auto` those of the head that it chose.
      key: of all that decides the accuracies but the seed.
    """

    pair: Pair
    name: str
    epsilon: float
    options: MethodOptions
    plan: Plan
    key: str

    def needed(self, seeds: Sequence[int]) -> Sequence[int]:
        """Returns the seeds that make a difference: one without privacy."""
        return seeds if self.options.private else seeds[:1]


@dataclass(frozen=True, kw_only=True)
class Score:
    """Accuracies in per cent, plain and mean over classes; `fault` where a head refuses."""

    key: str
    seed: int
    accuracy: float | None = None
    macro: float | None = None
    fault: str | None = None


def planned(pair: Pair, name: str, values: dict[str, Any], epsilon: float, files: Files) -> Fit:
    """Resolves a head's options for a pair and an epsilon, and prices them.

    Args:
      values: the head's options as a study writes them.
    """
    facts = DataFacts(
        n=pair.n, dimension=pair.dimension, classes=pair.classes, multi_label=False,
        epsilon=epsilon, delta=DELTA, unit="image",
    )  # fmt: skip
    options = method_options(values).resolve_choice(facts).trained_options
    plan = calibrate(
        options.list_mechanisms(pair.n),
        Target(n=pair.n, epsilon=epsilon, delta=DELTA),
        cache=files.cache / "plans",
    )
    key = artifacts.hash_value(
        {
            "pair": pair.name,
            "features": pair.fingerprint(files),
            "options": options.identity_options(),
            "epsilon": str(epsilon),
            "mechanisms": [asdict(mechanism) for mechanism in plan.mechanisms],
            "code": code_hash(HEADS[options.head]),
        }
    )
    return Fit(pair=pair, name=name, epsilon=epsilon, options=options, plan=plan, key=key)


def trained(fit: Fit, data: Features, training: TrainingSet, seeds: Sequence[int]) -> list[Score]:
    """Trains a head with each seed and scores it on the test examples."""
    identity = ["bench/accuracy.py", fit.pair.name, str(fit.epsilon)]
    try:
        heads = fit_heads(
            fit.options, training, fit.plan, [cell_seed(identity, seed) for seed in seeds]
        )
    except (ConfigError, DataError) as error:
        return [Score(key=fit.key, seed=seed, fault=str(error)) for seed in seeds]
    scores = torch.from_numpy(score_rows(heads, data.test))
    return [
        Score(
            key=fit.key,
            seed=seed,
            accuracy=100 * float((chosen == data.test_labels).double().mean()),
            macro=100 * macro(chosen, data.test_labels),
        )
        for seed, chosen in zip(seeds, scores.argmax(2), strict=True)
    ]


def macro(chosen: torch.Tensor, labels: torch.Tensor) -> float:
    """Returns the mean over the classes of the share of a class's rows that are right."""
    right = chosen == labels
    recalls = [right[labels == label].double().mean() for label in labels.unique()]
    return float(torch.stack(recalls).mean())


# the file of scores


class Scores:
    """Scores by key and seed, of all pairs; each new one is appended to its pair's file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: dict[tuple[str, int], Score] = {}
        for path in sorted(folder.glob("*.jsonl")):
            self._kept |= {(score.key, score.seed): score for score in _read(path)}

    def of(self, fit: Fit, seeds: Sequence[int]) -> list[Score]:
        """Returns what is known of a fit, in the order of the seeds."""
        known = [(fit.key, seed) for seed in fit.needed(seeds)]
        return [self._kept[key] for key in known if key in self._kept]

    def missing(self, fit: Fit, seeds: Sequence[int]) -> list[int]:
        return [seed for seed in fit.needed(seeds) if (fit.key, seed) not in self._kept]

    def add(self, fit: Fit, scores: Sequence[Score], seconds: float) -> None:
        """Appends scores; a line also names the head, to be read by people."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {
            "pair": fit.pair.name, "head": fit.name, "epsilon": str(fit.epsilon),
            "seconds": round(seconds / len(scores), 3), "options": fit.options.identity_options(),
        }  # fmt: skip
        lines = [json.dumps(asdict(score) | about) + "\n" for score in scores]
        with (self.folder / f"{fit.pair.name}.jsonl").open("a") as file:
            file.write("".join(lines))
        self._kept |= {(score.key, score.seed): score for score in scores}


def _read(path: Path) -> Iterator[Score]:
    for line in path.read_text().splitlines():
        try:
            values = json.loads(line)
        except json.JSONDecodeError:  # of a run that was killed while it wrote
            continue
        yield Score(**{name: values[name] for name in Score.__dataclass_fields__})


def run(fits: Sequence[Fit], files: Files, scores: Scores, seeds: Sequence[int],
        *, stop: float) -> int:  # fmt: skip
    """Trains what is missing, pair by pair; accuracies are not printed.

    Args:
      stop: time at which no further fit is begun, see `time.monotonic`.

    Returns:
      The number of fits that are still missing.
    """
    left = [fit for fit in fits if scores.missing(fit, seeds)]
    pair, data, training = None, None, None
    for place, fit in enumerate(left):
        if time.monotonic() > stop:
            return len(left) - place
        missing = scores.missing(fit, seeds)  # `auto` may have chosen what was trained just now
        if not missing:
            continue
        if data is None or training is None or fit.pair is not pair:
            pair, data = fit.pair, fit.pair.features(files)
            training = TrainingSet(data.train, data.train_labels, pair.classes)
        started = time.perf_counter()
        scores.add(fit, trained(fit, data, training, missing), time.perf_counter() - started)
        seconds = time.perf_counter() - started
        print(f"{pair.name} {fit.name} {fit.epsilon:g}: {seconds:.1f} s", flush=True)
    return 0


# the code that a head's accuracy depends on


@cache
def code_hash(module: str) -> str:
    """Hashes a head's module and all of the room that it imports, without comments and docs."""
    sources = {name: _path(name).read_text() for name in sorted(_reached(module))}
    return artifacts.hash_value({name: statements(text) for name, text in sources.items()})


def _reached(module: str) -> set[str]:
    reached: set[str] = set()
    left = [module, f"{ROOM}.fit", f"{ROOM}.scoring"]
    while left:
        name = left.pop()
        if name not in reached and name not in _BESIDE:
            reached.add(name)
            left += _imports(name)
    return reached


def _imports(module: str) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(_path(module).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOM):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            names += [name for name in inner if _path(name).exists()] or [str(node.module)]
    return names


def statements(source: str) -> str:
    """Returns the syntax of a module without its comments, docstrings and layout."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _path(module: str) -> Path:
    """Returns a module's file; of a package that of its names."""
    path = Path(dpprobe.__file__).parents[1].joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
