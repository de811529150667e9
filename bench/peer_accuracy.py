"""Accuracy, time and lines of user code beside diffprivlib and plain Opacus, on the same features.

    python -m venv peers-env
    peers-env/bin/pip install diffprivlib==0.6.6 "scikit-learn<1.7"
    .venv/bin/python bench/peer_accuracy.py --peer-python peers-env/bin/python

Writes bench/results/peers.md. Features are computed once and stay in `--cache`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peer_features import make_features
from peers.remote import ONE_THREAD

RESULT = Path(__file__).parent / "results" / "peers.md"
EPSILONS = (0.1, 0.5, 1.0, 2.0, 8.0)
DELTA = 1e-5
OURS = "dpprobe, auto"


@dataclass(frozen=True)
class Peer:
    """A way to train: its adapter, and the promise that it makes."""

    adapter: str
    promise: str
    groups: bool = False
    private: bool = True
    elsewhere: bool = False  # in the environment of --peer-python


PEERS = {
    OURS: Peer("use_dpprobe", "(ε, 1e-5), per row"),
    "dpprobe, auto, groups": Peer("use_dpprobe", "(ε, 1e-5), per group", groups=True),
    "Opacus": Peer("use_opacus", "(ε, 1e-5), per row"),
    "diffprivlib": Peer("use_diffprivlib", "(ε, 0), per row", elsewhere=True),
    "scikit-learn": Peer("use_sklearn", "none", private=False),
}  # fmt: skip


class Worker:
    """A process that trains by adapters, on one thread."""

    def __init__(self, python: str, *, dpprobe: bool) -> None:
        here = Path(__file__).parent
        places = [str(here), str(here.parent / "src")] if dpprobe else [str(here)]
        self._process = subprocess.Popen(
            [python, "-m", "peers.train_worker"], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(places)},
        )  # fmt: skip

    def train(self, peer: Peer, path: Path, classes: int, epsilon: float) -> dict[str, float]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "adapter": peer.adapter, "path": str(path), "groups": peer.groups,
            "target": {"classes": classes, "epsilon": epsilon, "delta": DELTA},
        }  # fmt: skip
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer: dict[str, float] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def count_lines(peer: Peer) -> int:
    """Counts the lines of an adapter without blanks, its docstring and names of types."""
    source = (Path(__file__).parent / "peers" / f"{peer.adapter}.py").read_text(encoding="utf-8")
    _, _, code = source.partition('"""\n')
    return sum(bool(line) and not line.startswith("from peers") for line in code.splitlines())


def list_versions(python: str, *packages: str) -> str:
    """Lists the versions that an environment has."""
    code = "from importlib.metadata import version as v; import sys; print(*map(v, sys.argv[1:]))"
    done = subprocess.run(
        [python, "-c", code, *packages], capture_output=True, text=True, check=True
    )
    return ", ".join(map(" ".join, zip(packages, done.stdout.split(), strict=True)))


def measure(paths: dict[str, Path], workers: dict[bool, Worker], fits: int) -> dict[str, Any]:
    """Trains every peer on every set at every epsilon, in turns; returns the answers by set."""
    found: dict[str, Any] = {}
    for name, path in paths.items():
        with np.load(path) as rows:
            classes = int(rows["y"].max()) + 1
            grouped = len(np.unique(rows["groups"])) < len(rows["y"])
            facts = {
                "rows": len(rows["y"]), "dimension": rows["X"].shape[1], "classes": classes,
                "groups": len(np.unique(rows["groups"])), "tested": len(rows["y_test"]),
                "constant": float(np.bincount(rows["y_test"]).max() / len(rows["y_test"])),
            }  # fmt: skip
        answers: dict[str, dict[float, list[dict[str, float]]]] = {}
        for _ in range(fits):
            for label, peer in PEERS.items():
                if (peer.groups and not grouped) or peer.elsewhere not in workers:
                    continue
                for epsilon in EPSILONS if peer.private else (0.0,):
                    made = workers[peer.elsewhere].train(peer, path, classes, epsilon)
                    answers.setdefault(label, {}).setdefault(epsilon, []).append(made)
                    print(f"{name}: {label} at {epsilon:g}: {made}", flush=True)
        found[name] = {**facts, "answers": answers}
    return found


def write_table(found: dict[str, Any], fits: int, versions: str) -> str:
    first = next(iter(next(iter(found.values()))["answers"][OURS].values()))[0]["seconds"]
    lines = [
        "# Accuracy beside other libraries",
        "",
        compare_accuracies(found),
        "",
        f"Accuracy in percent on test rows, mean of {fits} fits. All libraries train on the same",
        "features, untuned: with their defaults, or the settings of their own example.",
        "Time: processor seconds of the first fit at each ε on one thread, with calibration of the",
        "noise and without imports, in the median; in brackets the ratio to dpprobe. Lines: user",
        f"code in `bench/peers/use_*.py`. Versions: {versions}.",
        f"dpprobe's first fit of the process, which loads its kernels, took {first:.1f} s.",
        "",
        "The promises differ:",
        "",
        "- dpprobe and Opacus promise (ε, 1e-5). Opacus and diffprivlib count rows, so a person",
        "  with m rows has a weaker guarantee. With groups, dpprobe protects the whole person.",
        "- diffprivlib promises δ = 0, which is stronger, but only if no row is longer than",
        "  `data_norm`. Here each row is scaled to length 1. It divides ε among the classes.",
        "- OpenDP 0.16.0 has no classifier: its scikit-learn part has PCA and a linear regression.",
    ]
    heads = " | ".join(f"ε = {each:g}" for each in EPSILONS)
    for name, facts in found.items():
        answers = facts["answers"]
        lines += [
            "",
            f"## {name}",
            "",
            f"{facts['rows']} training rows of {facts['groups']} groups, {facts['dimension']} "
            f"features, {facts['classes']} classes, {facts['tested']} test rows of other groups. "
            f"Majority-class baseline: {100 * facts['constant']:.1f}%.",
            "",
            f"| library | promise | {heads} | seconds | lines |",
            "|---" * (len(EPSILONS) + 4) + "|",
        ]
        ours = median_seconds(answers[OURS])
        for label, by_epsilon in answers.items():
            peer, taken = PEERS[label], median_seconds(by_epsilon)
            means = {epsilon: mean_accuracy(made) for epsilon, made in by_epsilon.items()}
            cells = (
                " | ".join(f"{means[epsilon]:.1f}" for epsilon in EPSILONS)
                if peer.private
                else " | ".join([f"{means[0.0]:.1f}", *[""] * (len(EPSILONS) - 1)])
            )
            lines.append(
                f"| {label} | {peer.promise} | {cells} | {taken:.2f} ({taken / ours:.1f}×) | "
                f"{count_lines(peer)} |"
            )
    return "\n".join(lines) + "\n"


def mean_accuracy(fits: list[dict[str, float]]) -> float:
    return 100 * statistics.mean(each["accuracy"] for each in fits)


def compare_accuracies(found: dict[str, Any]) -> str:
    """Says in how many pairs of a set and an epsilon dpprobe is ahead of Opacus, per row."""
    gains = [
        mean_accuracy(facts["answers"][OURS][epsilon])
        - mean_accuracy(facts["answers"]["Opacus"][epsilon])
        for facts in found.values()
        for epsilon in EPSILONS
    ]
    ahead = sum(each > 0 for each in gains)
    return (
        f"Per row, `auto` is more accurate than untuned Opacus in {ahead} of {len(gains)} pairs of "
        f"a data set and ε, by {statistics.median(gains):.1f} points in the median "
        f"({min(gains):.1f} to {max(gains):.1f})."
    )


def median_seconds(by_epsilon: dict[float, list[dict[str, float]]]) -> float:
    """Returns the median over epsilons of the first fit; dpprobe keeps its noise for later ones."""
    return statistics.median(made[0]["seconds"] for made in by_epsilon.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="a Python that imports diffprivlib")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--speech", type=Path, default=Path("data/speech/speech.npz"))
    parser.add_argument("--cache", type=Path, default=Path("data/bench_peers"))
    parser.add_argument("--fits", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="names of sets; the table is not written then")
    asked = parser.parse_args()
    paths = make_features(asked.cache, data=asked.data, speech=asked.speech)
    if asked.only:
        paths = {name: paths[name] for name in asked.only}
    workers = {False: Worker(sys.executable, dpprobe=True)}
    if asked.peer_python:
        workers[True] = Worker(asked.peer_python, dpprobe=False)
    found = measure(paths, workers, asked.fits)
    for worker in workers.values():
        worker.close()
    (asked.cache / "answers.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    versions = list_versions(sys.executable, "opacus", "scikit-learn")
    if asked.peer_python:
        versions += "; " + list_versions(asked.peer_python, "diffprivlib", "scikit-learn")
    text = write_table(found, asked.fits, versions)
    print(text)
    if not asked.only:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
