"""Parts of a step of `sgd`: its time beside copies of the compiled step that lack one part each.

Processor time of one thread on one core, interleaved rounds. Compiling takes minutes, once.
The bound is the sum of the parts, with the products at the machine's fastest rate.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import truediv
from pathlib import Path
from types import ModuleType

import torch
from numba.misc.appdirs import AppDirs

import limits
from clock import Clock, Engine
from dpprobe import artifacts
from dpprobe.heads import clipping, gradient_steps
from dpprobe.heads.kernels import fused_step
from heads import Setting, note, ours
from peers.remote import ONE_THREAD
from report import SETS, TITLES, processor

RESULTS = Path(__file__).resolve().parent / "results" / "step_parts.md"
MEASURED = ("batch32", "full")
WHOLE, PRODUCTS, OUTSIDE = "whole step", "two products and fetching", "outside compiled code"
Changes = tuple[tuple[str, str], ...]
# Texts of `fused_step` and their replacements. A block's rows stay in the second-level cache.
COPIES: Mapping[str, Changes] = {
    WHOLE: (),
    PRODUCTS: (
        ("        _multiply_rows(pointers, m, d, head, z, ahead)\n", ""),
        ("        _multiply_back(pointers, m, d, z, release[seed], panel, ahead)\n", ""),
    ),
    "noise": (("if deviation > _NONE and not", "if deviation > np.inf and not"),),
    "exponentials": (("power = _exp(line[i] - top[i])", "power = _ONE"),),
    "norms for clipping": (
        ("factors[i] += _f8(line[i]) * _f8(line[i])", "pass"),
        ("factor = min(bounds[i] / np.sqrt(factors[i]), 1.0)", "factor = 1.0"),
    ),
    "update of the weights": (("head[j] -= rate * total[j]", "pass"),),
    "rows from memory, not from one block": (
        ("d * rows[min(i, m - 1)]", "d * (rows[min(i, m - 1)] % 32)"),
        ("later[i] = first + 4 * d * row\n", "later[i] = first + 4 * d * (row % 32)\n"),
    ),
    OUTSIDE: (
        ("for step in range(sizes.shape[0]):", "for step in range(0):"),
        ("for index in range(sizes.shape[0]):", "for index in range(0):"),
    ),
}
# On full batches PyTorch draws the noise and takes the step, outside.
ONLY_COMPILED = ("noise", "update of the weights")
# The least that a step needs beside its products.
NEEDED = [name for name in COPIES if name not in (WHOLE, PRODUCTS)]


@dataclass(frozen=True)
class Parts:
    """Seconds of a step, and of each part: what the step takes less without it, in each round."""

    whole: float
    parts: Mapping[str, float]
    fastest_products: float

    @property
    def bound(self) -> float:
        return self.fastest_products + sum(max(0.0, self.parts.get(name, 0)) for name in NEEDED)


def main() -> None:
    """Prints the table, and writes it to bench/results/step_parts.md after a whole run."""
    options = parsed()
    if any(os.environ.get(name) != "1" for name in ONE_THREAD):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | ONE_THREAD)
    torch.set_num_threads(1)
    modules = {name: make_copy(name, changes) for name, changes in COPIES.items()}
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    found = {}
    for name in SETS:
        setting = Setting.random(name, Clock("cpu"))
        for case in MEASURED:
            found[f"{name}, {TITLES[case]}"] = measure(setting, case, modules, options)
            note(f"{name}, {TITLES[case]}")
    text = markdown(found, options.rounds)
    print(text)
    if options.output:
        artifacts.write_text(options.output, text)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds (default 15)")
    parser.add_argument("--seconds", type=float, default=0.2, help="of one measurement")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file to write")
    return parser.parse_args()


def make_copy(name: str, changes: Changes) -> ModuleType:
    """Imports a copy of `fused_step` with each first text replaced by the second.

    Raises:
      SystemExit: if a text is not there exactly once.
    """
    source = Path(str(fused_step.__file__)).read_text()
    for old, new in changes:
        if source.count(old) != 1:
            sys.exit(f"{old!r} occurs {source.count(old)} times in fused_step.py: change COPIES")
        source = source.replace(old, new)
    title = "fused_step_" + "".join(each if each.isalnum() else "_" for each in name)
    folder = Path(AppDirs("dpprobe-bench", appauthor=False).user_cache_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{title}.py"
    artifacts.write_text(path, source)
    spec = importlib.util.spec_from_file_location(title, path)
    assert spec
    assert spec.loader
    module = sys.modules[title] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    note(f"compiled: {name}")
    return module


def measure(
    setting: Setting, case: str, modules: Mapping[str, ModuleType], options: argparse.Namespace
) -> Parts:
    run = ours(setting, setting.data(), case, 1)
    engines = {
        name: Engine(with_module(module, run), 31_250)
        for name, module in modules.items()
        if case == "batch32" or name not in ONLY_COMPILED
    }
    rates = limits.rates(setting.clock, setting.features).items()
    engines |= {name: engine for name, engine in rates if name.startswith("square")}
    for engine in engines.values():
        engine.calibrate(options.seconds)
    for number in range(options.rounds):
        for engine in engines.values():
            engine.measure(number, options.rounds)
    whole = engines[WHOLE]
    lost = {
        name: whole.median * (1 - statistics.median(map(truediv, engine.times, whole.times)))
        for name, engine in engines.items()
        if name in COPIES and name != WHOLE
    }
    lost[OUTSIDE] = whole.median - lost[OUTSIDE]
    square = min(e.median for name, e in engines.items() if name.startswith("square"))
    size = 4.0 * setting.batch(case) * (setting.shape.dimension + 1) * setting.shape.classes
    return Parts(whole.median, lost, size * square / (2.0 * limits.SQUARE**3))


def with_module(module: ModuleType, run: Callable[[int], float]) -> Callable[[int], float]:
    """Returns `run` with a copy in the place of `fused_step`."""

    def timed(steps: int) -> float:
        for user in (clipping, gradient_steps):
            user.fused_step = module  # type: ignore[attr-defined]
        return run(steps)

    return timed


def markdown(found: Mapping[str, Parts], rounds: int) -> str:
    def line(title: str, values: list[str]) -> str:
        return f"| {title} | " + " | ".join(values) + " |"

    def share(value: float | None, parts: Parts) -> str:
        return "-" if value is None else f"{max(0.0, value / parts.whole):.2f}"

    names = [name for name in COPIES if name != WHOLE]
    table = [line("", list(found)), line("---", ["---"] * len(found))]
    table += [line(n, [share(p.parts.get(n), p) for p in found.values()]) for n in names]
    table += [
        line("two products, at the machine's rate",
             [share(p.fastest_products, p) for p in found.values()]),
        line("**bound**", [share(p.bound, p) for p in found.values()]),
        line("**step, times the bound**", [f"{p.whole / p.bound:.2f}" for p in found.values()]),
    ]  # fmt: skip
    return "\n".join([
        "# Parts of a private training step\n",
        f"{processor()}; one thread on one core, processor time, medians of {rounds} interleaved "
        f"rounds, load {os.getloadavg()[0]:.1f} at the end. Made by `bench/ablation.py`.\n",
        "Each part is the time that a step saves without it, in units of the whole step. Parts "
        "overlap, so they do not add up to 1. The bound is the time of all parts but the products, "
        "with the products at the fastest rate of big squares. No step can leave any of these out. "
        "Only hiding a part behind another, as fetching can be, goes below.\n",
        *table,
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
