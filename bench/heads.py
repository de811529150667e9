"""Times private training of linear heads by dpprobe and its peers, and the machine's limits.

All use one thread and are measured by processor time in interleaved rounds. dpprobe runs by its
public `dpprobe.heads.fit`, with sampling, noise and bookkeeping. bench/README.md has the details.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import limits
import memory
import report
from clock import Clock, Engine, Work
from dpprobe.features.aligned_rows import empty_rows
from dpprobe.files import atomic_writes
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.kernels.vectors import LANES
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import cell_seed
from peers import Run, Task
from peers.remote import ONE_THREAD, Remote
from report import CASES, EXACT, FIVE, OURS, SECOND_ORDER, SETS, Key, Shape

# One page per SIMD vector width, which affects ratios more than the processor's model does.
PAGES = {16: "heads_avx512.md", 8: "heads_avx2.md", 4: "heads_narrow.md"}
RESULTS = Path(__file__).resolve().parent / "results" / PAGES[LANES]
# The parts batch32 and memory run only on a CPU, because no fit on a GPU has small batches.
PARTS = ("batch32", "memory", "batch4096", "full", "second")
# The foundation-features recipe: 20 epochs in batches of 32.
RECIPE_STEPS = 31_250
NOISE_MULTIPLIER = 0.7524


@dataclass(frozen=True)
class Peer:
    """A library, with the settings of its measurement.

    Attributes:
      adapter: a module of `peers`.
      physical: rows per pass, by set or by (set, case); None for a whole batch.
      pieces: True to measure only batches that need several passes.
      leave_out: pairs (set, case) that the library cannot run within an hour.
      apart: True to use a separate process even if the library is installed beside torch.
    """

    adapter: str
    physical: Mapping[Any, int | None] = field(default_factory=dict)
    pieces: bool = False
    leave_out: frozenset[tuple[str, str]] = frozenset()
    apart: bool = False

    def at_once(self, name: str, case: str) -> int | None:
        return self.physical.get((name, case), self.physical.get(name))


# Rows per pass are the fastest power of two on the CPU. "Opacus hooks" takes whole batches in one
# pass, which is Opacus's default.
PEERS: dict[str, Peer] = {
    "Opacus hooks": Peer("opacus_hooks", {"A": 4096}, leave_out=frozenset({("B", "full")})),
    "Opacus hooks, in pieces": Peer("opacus_hooks", {"A": 256, "B": 16}, pieces=True),
    "Opacus ghost": Peer("opacus_ghost", {"A": 4096, "B": 512}),
    "jax-privacy": Peer("jaxprivacy", {"A": 256, ("A", "batch32"): 8, "B": 1}, apart=True),
}


@dataclass(frozen=True)
class Setting:
    """One set of random data."""

    name: str
    shape: Shape
    features: torch.Tensor
    labels: torch.Tensor
    clock: Clock

    @classmethod
    def random(cls, name: str, clock: Clock) -> Setting:
        shape = SETS[name]
        generator = np.random.default_rng(0)
        # Memory has the layout of stored features: huge pages, if available, and whole lines.
        rows = empty_rows((shape.rows, shape.dimension), np.float32)
        generator.standard_normal(dtype=np.float32, out=rows)
        features = torch.from_numpy(rows).to(clock.device)
        labels = torch.from_numpy(generator.integers(shape.classes, size=shape.rows))
        return cls(name, shape, features, labels.to(clock.device), clock)

    def data(self) -> TrainingSet:
        return TrainingSet(self.features, self.labels, self.shape.classes)

    def tiny(self) -> Setting:
        """Returns a small part of the data, for a warm-up that loads code into memory."""
        shape = Shape(512, 64, self.shape.classes)
        features = self.features[: shape.rows, : shape.dimension].clone()
        return Setting(self.name, shape, features, self.labels[: shape.rows], self.clock)

    def batch(self, case: str) -> int:
        wanted = CASES[case]
        return self.shape.rows if wanted is None else min(wanted, self.shape.rows // 2)


def main() -> None:
    """Prints the tables and, after a whole run, writes them to the page of this processor."""
    options = parsed()
    if options.device == "cpu" and any(os.environ.get(name) != "1" for name in ONE_THREAD):
        # Libraries read the variables of ONE_THREAD when they are loaded.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ONE_THREAD)
    torch.set_num_threads(1)
    clock = Clock(options.device)
    settings = [Setting.random(name, clock) for name in options.sets]
    bytes_above = used_memory(settings, options) if "memory" in options.parts else {}
    with ExitStack() as stack:
        available = Available(stack, options)
        engines = dict(all_engines(settings, available, options))
        times(engines, options)
    text = report.markdown(engines, bytes_above, available.versions, options.rounds)
    print(text)
    if options.output:
        atomic_writes.write_text(options.output, text)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--only", choices=SETS, help="measure only this set of data")
    parser.add_argument("--cases", help=f"some of {','.join(PARTS)} (default all)")
    parser.add_argument("--quick", action="store_true", help="one round of short measurements")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peer-python", help="interpreter of an environment that has more peers")
    parser.add_argument("--output", type=Path, help="file to write; default: of whole runs only")
    options = parser.parse_args()
    parts = PARTS if options.device == "cpu" else PARTS[2:]
    options.parts = options.cases.split(",") if options.cases else list(parts)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--cases: {', '.join(sorted(unknown))}: not among {', '.join(PARTS)}")
    options.sets = [options.only] if options.only else list(SETS)
    options.seconds = (0.1 if options.device == "cpu" else 0.25) if options.quick else 0.5
    options.rounds = 1 if options.quick else options.rounds
    whole = not (options.only or options.cases or options.quick) and options.device == "cpu"
    if whole and options.output is None:
        options.output = RESULTS
    return options


class Available:
    """The peers that are installed in this or the other environment, and their processes."""

    def __init__(self, stack: ExitStack, options: argparse.Namespace) -> None:
        self.versions: dict[str, str | None] = {}
        self._remotes: dict[str, Remote] = {}
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dpprobe-bench-"))
        self._folder = Path(folder)
        pythons = [sys.executable] + ([options.peer_python] if options.peer_python else [])
        workers = [Remote(python, options.device) for python in pythons]
        for worker in workers:
            stack.callback(worker.close)
        for title, peer in PEERS.items():
            self.versions[title] = None
            for number, worker in enumerate(workers):
                if self.versions[title] is None and (installed := worker.version(peer.adapter)):
                    self.versions[title] = installed
                    if number or peer.apart:
                        self._remotes[title] = worker

    def engine(self, title: str, setting: Setting, case: str) -> Engine | None:
        """Returns a peer's engine; None if the peer is not installed or has nothing to run."""
        peer = PEERS[title]
        physical = peer.at_once(setting.name, case)
        left_out = (setting.name, case) in peer.leave_out
        one_piece = peer.pieces and physical is not None and setting.batch(case) <= physical
        if self.versions[title] is None or left_out or one_piece:
            return None
        task = peer_task(setting, case, physical)
        if title not in self._remotes:
            run = local_run(peer, task, setting)
            return Engine(lambda steps: setting.clock.seconds(lambda: run(steps)))
        key = f"{title} {setting.name} {case}"
        worker = self._remotes[title]
        worker.trainer(key, peer.adapter, task, *self._files(setting))
        return Engine(lambda steps: worker.run(key, steps))

    def _files(self, setting: Setting) -> tuple[Path, Path]:
        paths = [self._folder / f"{setting.name}-{part}.npy" for part in ("features", "labels")]
        for path, tensor in zip(paths, (setting.features, setting.labels), strict=True):
            if not path.exists():
                np.save(path, tensor.cpu().numpy())
        return paths[0], paths[1]


def peer_task(setting: Setting, case: str, physical: int | None) -> Task:
    shape = setting.shape
    return Task(
        rows=shape.rows,
        classes=shape.classes,
        batch=setting.batch(case),
        physical=physical,
        device=setting.clock.device,
        noise_multiplier=NOISE_MULTIPLIER,
    )


def local_run(peer: Peer, task: Task, setting: Setting) -> Run:
    adapter = import_module(f"peers.{peer.adapter}")
    arrays = setting.features.cpu().numpy(), setting.labels.cpu().numpy()
    run: Run = adapter.trainer(task, *arrays)
    return run


def all_engines(
    settings: Sequence[Setting], available: Available, options: argparse.Namespace
) -> Iterator[tuple[Key, Engine]]:
    """Yields the engines in the order of a round, with compared engines side by side."""
    for setting in settings:
        for name, engine in limits.rates(setting.clock, setting.features).items():
            yield Key(setting.name, "limit", name), engine
        data = setting.data()
        for case in CASES:
            if case not in options.parts:
                continue
            key = partial(Key, setting.name, case)
            for title, seeds in ((OURS, 1), (FIVE, 5)):
                yield key(title), Engine(ours(setting, data, case, seeds), RECIPE_STEPS)
            if setting.clock.device == "cpu":
                run = ours(setting, data, case, 1, engine="exact")
                yield key(EXACT), Engine(run, RECIPE_STEPS)
            for title in PEERS:
                peer = available.engine(title, setting, case)
                if peer:
                    yield key(title), peer
            shape = setting.shape
            batch = setting.batch(case)
            products = limits.products(setting.clock, setting.features, batch, shape.classes)
            yield key("products"), products
        if "second" in options.parts:
            for name, engine in limits.second_order(setting.clock, setting.features).items():
                yield Key(setting.name, "second", name), engine
            for name, values in SECOND_ORDER.items():
                yield Key(setting.name, "second", name), Engine(one_fit(setting, values), 1)


def ours(
    setting: Setting, data: TrainingSet, case: str, seeds: int, engine: str = "closed_form"
) -> Callable[[int], float]:
    """Returns a function that times steps of `sgd`, for `seeds` seeds in one pass."""
    values = {"head": "sgd", "batch_size": CASES[case] or "full", "engine": engine}

    def run(steps: int) -> float:
        work = fit({**values, "steps": steps}, data, seeds)
        return setting.clock.seconds(work)

    return run


def one_fit(setting: Setting, values: dict[str, Any]) -> Callable[[int], float]:
    """Returns a function that times a whole fit, without cached facts about the features."""

    def run(steps: int) -> float:
        assert steps == 1
        return setting.clock.seconds(lambda: fit(values, setting.data(), 1)())

    return run


def fit(values: dict[str, Any], data: TrainingSet, seeds: int) -> Callable[[], object]:
    """Returns a fit by the public API, with usual noise whose epsilon is not computed."""
    options = method_options(values)
    plan = Plan(
        mechanisms=tuple(
            item.scale_noise(NOISE_MULTIPLIER) for item in options.list_mechanisms(data.rows)
        ),
        n=data.rows,
        epsilon=1.0,
        delta=1e-5,
        accountant="pld",
        realised_epsilon=1.0,
    )
    chosen = [cell_seed("bench", index) for index in range(seeds)]
    return lambda: fit_heads(options, data, plan, chosen)


def times(engines: dict[Key, Engine], options: argparse.Namespace) -> None:
    """Warms up all engines, then measures the engines in turns."""
    for key, engine in engines.items():
        engine.calibrate(options.seconds)
        note(f"warm-up {' '.join(key)}")
    for number in range(options.rounds):
        for engine in engines.values():
            engine.measure(number, options.rounds)
        note(f"round {number + 1}/{options.rounds}")


def note(text: str) -> None:
    print(f"{text} ({os.times().user + os.times().system:.0f} s)", file=sys.stderr, flush=True)


def used_memory(settings: Sequence[Setting], options: argparse.Namespace) -> dict[Key, float]:
    """Returns the peak memory above the features, in bytes, by (set, case or head, engine)."""
    peaks = {}
    for setting in settings:
        for key, work, warm in memory_cases(setting, options):
            peaks[key] = memory.above(work, warm, options.device)
        note(f"memory {setting.name}")
    return peaks


def memory_cases(setting: Setting, options: argparse.Namespace) -> Iterator[tuple[Key, Work, Work]]:
    """Yields each function to measure, with its warm-up on a small part of the data."""
    tiny = setting.tiny()
    for case in CASES:
        if case not in options.parts:
            continue
        for title, seeds in ((OURS, 1), (FIVE, 5)):
            pair = [sgd_fit(one, case, seeds) for one in (setting, tiny)]
            yield Key(setting.name, case, title), pair[0], pair[1]
        for title in ("Opacus hooks", "Opacus ghost"):
            peer = PEERS[title]
            if (setting.name, case) not in peer.leave_out:
                pair = [peer_steps(peer, one, case) for one in (setting, tiny)]
                yield Key(setting.name, case, title), pair[0], pair[1]
    if "second" in options.parts:
        for name, values in SECOND_ORDER.items():
            pair = [head_fit(one, values) for one in (setting, tiny)]
            yield Key(setting.name, name, OURS), pair[0], pair[1]


def sgd_fit(setting: Setting, case: str, seeds: int) -> Work:
    batch = setting.batch(case)
    size = "full" if batch == setting.shape.rows else batch
    values = {"head": "sgd", "batch_size": size, "steps": 200 if batch == 32 else 2}
    return lambda: fit(values, setting.data(), seeds)()


def head_fit(setting: Setting, values: dict[str, Any]) -> Work:
    return lambda: fit(values, setting.data(), 1)()


def peer_steps(peer: Peer, setting: Setting, case: str) -> Work:
    task = peer_task(setting, case, peer.at_once(setting.name, case))
    return lambda: local_run(peer, task, setting)(5 if task.batch == 32 else 1)


if __name__ == "__main__":
    main()
