"""Formats the tables of bench/results/heads_*.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import limits
from clock import Engine, Ratio, number
from dpprobe.heads.kernels.vectors import LANES


class Key(NamedTuple):
    """Identifies a measurement: set of data, case (or "second", or "limit"), and engine."""

    data: str
    case: str
    engine: str


Engines = Mapping[Key, Engine]


class Shape(NamedTuple):
    rows: int
    dimension: int
    classes: int


SETS = {"A": Shape(50_000, 768, 10), "B": Shape(50_000, 2048, 100)}
CASES: dict[str, int | None] = {"batch32": 32, "batch4096": 4096, "full": None}
TITLES = {"batch32": "batch 32", "batch4096": "batch 4096", "full": "full batch"}
OURS, FIVE = "dpprobe", "dpprobe, five seeds"
EXACT = "dpprobe, engine: exact"
SECOND_ORDER: dict[str, dict[str, Any]] = {
    "least_squares": {"head": "least_squares"},
    "newton, one step": {"head": "newton", "steps": 1},
    "newton, three steps": {"head": "newton"},
    "feature_covariance": {"head": "feature_covariance"},
    "prototypes": {"head": "prototypes"},
}
HOOKS = "Opacus hooks"
GRAM, TRIANGLE = "X^T X", "X^T X, one triangle"
EXACT_TRIANGLE = "X^T X, float64 triangle"
# The number of second moments that a head sums and decomposes; 1 if not listed.
MOMENTS = {"newton, three steps": 3, "prototypes": 0}


def markdown(
    engines: Engines,
    memory: Mapping[Key, float],
    versions: Mapping[str, str | None],
    rounds: int,
) -> str:
    parts = [
        "# Private training of linear heads: dpprobe, its peers and the machine",
        machine(versions),
        f"One thread against one thread, processor time, medians of {rounds} interleaved rounds, "
        "in brackets the lowest and the highest round. Ratios of one run; times mean nothing "
        "elsewhere. How each is run: [bench/README.md](../README.md).",
        sets(engines),
        section("Time of a step, dpprobe = 1", steps(engines, versions)),
        section("The limit of the machine", limit(engines)),
        section("Time of one fit of the second-order heads", second_order(engines)),
        section("Peak memory above the features, MB", megabytes(memory)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def machine(versions: Mapping[str, str | None]) -> str:
    libraries = ", ".join(
        f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "numba")
    )
    peers = ", ".join(
        f"{title} {version or 'not installed'}"
        for title, version in versions.items()
        if not title.endswith("pieces")
    )
    return f"{processor()}; Python {platform.python_version()}, {libraries}; {peers}."


def cpu_model() -> str:
    """Returns the processor's model, as Linux names it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def processor() -> str:
    """Returns the processor's model with its vector extensions."""
    vector = {16: "AVX-512", 8: "AVX2", 4: "neither AVX-512 nor AVX2"}[LANES]
    return f"{cpu_model()} ({vector})"


def sets(engines: Engines) -> str:
    names = sorted({key[0] for key in engines})
    described = [
        f"{name} is {SETS[name].rows:,} x {SETS[name].dimension}, K = {SETS[name].classes}"
        for name in names
    ]
    return f"Random data: {'; '.join(described)}."


def section(title: str, lines: list[str]) -> str:
    return "\n".join([f"## {title}", "", *lines]) if lines else ""


def columns(engines: Engines) -> list[tuple[str, str]]:
    return [(key.data, key.case) for key in engines if key.case in CASES and key.engine == OURS]


def against(
    engines: Engines, name: str, head: str, factorisation: str, product: str = GRAM, count: int = 1
) -> Ratio:
    """Returns a fit's time divided by `count` times the time of X^T X plus a factorisation."""
    gram, factor = (engines[Key(name, "second", part)] for part in (product, factorisation))
    both = Engine(gram.run)
    pairs = zip(gram.times, factor.times, strict=True)
    both.times = [None if a is None or b is None else count * (a + b) for a, b in pairs]
    return Ratio.of(engines[Key(name, "second", head)], both)


def steps(engines: Engines, versions: Mapping[str, str | None]) -> list[str]:
    cases = columns(engines)
    if not cases:
        return []
    rows = [
        "| | " + " | ".join(f"{name}, {TITLES[case]}" for name, case in cases) + " |",
        "|---|" + "---|" * len(cases),
        f"| {OURS} |" + " 1 |" * len(cases),
    ]
    cells = [cell(engines, Key(*column, EXACT), Key(*column, OURS)) for column in cases]
    rows.append(f"| {EXACT} | {' | '.join(cells)} |")
    for title, version in versions.items():
        if version is None:
            rows.append(f"| {title} |" + " not installed |" * len(cases))
            continue
        cells = [cell(engines, Key(*column, title), Key(*column, OURS)) for column in cases]
        rows.append(f"| {title} | {' | '.join(cells)} |")
    rows += ["", "Five seeds: dpprobe trains them in one pass, a peer one after the other.", ""]
    rows += rows[:2]
    cells = [cell(engines, Key(*column, FIVE), Key(*column, OURS)) for column in cases]
    rows.append(f"| {FIVE}, times one seed | {' | '.join(cells)} |")
    cells = [cell(engines, Key(*column, HOOKS), Key(*column, FIVE), 5.0) for column in cases]
    rows.append(f"| {HOOKS}, times {FIVE} | {' | '.join(cells)} |")
    return rows


def cell(engines: Engines, above: Key, below: Key, factor: float = 1.0) -> str:
    if above not in engines:
        return "-"
    return str(Ratio.of(engines[above], engines[below], factor))


def limit(engines: Engines) -> list[str]:
    rows = []
    for name, case in columns(engines):
        shape = SETS[name]
        batch = CASES[case] or shape.rows
        unit = units(engines, name)
        parts = limits.bounds(unit, batch=batch, dimension=shape.dimension, classes=shape.classes)
        least = parts["products"] + parts["noise"]
        time = engines[Key(name, case, OURS)].median
        ratio = Ratio.of(engines[Key(name, case, OURS)], engines[Key(name, case, "products")])
        gather = f"{parts['gather'] / least:.2f}" if CASES[case] else "-"
        rows.append(
            f"| {name}, {TITLES[case]} | {parts['products'] / least:.2f} | "
            f"{parts['noise'] / least:.2f} | {gather} | "
            f"**{number(time / least)}** | {ratio} |"
        )
    if not rows:
        return []
    return [
        *(f"- {text}" for text in rates(engines)),
        "",
        "The limit of a step is its two products and its noise, at the fastest of these rates; "
        "fetching a batch's rows (in units of the limit) can hide behind them. The last column "
        "takes the products in their own shapes, in the fastest of nine forms of torch and NumPy. "
        "[step_parts.md](step_parts.md) has the cost of each part of a step, and their sum.",
        "",
        "| | products | noise | (rows fetched) | "
        "dpprobe, times the limit | dpprobe, times its products |",
        "|---|---|---|---|---|---|",
        *rows,
    ]


def units(engines: Engines, name: str) -> dict[str, float]:
    """Returns the seconds per operation, normal, byte and launch in the fastest round."""
    amounts = limits.units(SETS[name].dimension)
    measured = {rate: engines.get(Key(name, "limit", rate)) for rate in amounts}
    return {rate: engine.fastest / amounts[rate] for rate, engine in measured.items() if engine}


def rates(engines: Engines) -> Iterator[str]:
    for name in sorted({key.data for key in engines}):
        unit = units(engines, name)
        products = each(unit, "square, ", "GF/s", lambda value: 1e-9 / value)
        normals = each(unit, "normals, ", "ns", lambda value: 1e9 * value)
        yield (
            f"{name}: matrix products {products}; a normal {normals}; random rows "
            f"{number(1e-9 / unit['gather'])} GB/s; a torch operation {number(1e6 * unit['op'])} us"
        )


def each(unit: Mapping[str, float], kind: str, name: str, scale: Callable[[float], float]) -> str:
    return ", ".join(
        f"{rate.removeprefix(kind)} {number(scale(value))} {name}"
        for rate, value in unit.items()
        if rate.startswith(kind)
    )


def second_order(engines: Engines) -> list[str]:
    keys = [key for key in engines if key[1] == "second" and key[2] in SECOND_ORDER]
    if not keys:
        return []
    rows = [
        "Everything from raw features on: lengths of rows, normalisation, Gram matrix, noise, "
        "solution, and for feature_covariance its gradient steps. The last column is over what the "
        "head cannot do without: a float64 triangle and an eigh for each second moment (three of "
        "newton's three steps, none of prototypes). Beside them feature_covariance multiplies all "
        "rows with K columns 12 times, newton 4 times a step, the others twice at most. "
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",
        "",
        "| | over X^T X and Cholesky | over X^T X and eigh | over one triangle and eigh | "
        "over its own sums and eigh |",
        "|---|---|---|---|---|",
    ]
    for name, case, head in keys:
        cells: list[Ratio | str] = [
            against(engines, name, head, part) for part in ("Cholesky", "eigh")
        ]
        if Key(name, case, TRIANGLE) in engines:
            cells.append(against(engines, name, head, "eigh", TRIANGLE))
            count = MOMENTS.get(head, 1)
            exact = against(engines, name, head, "eigh", EXACT_TRIANGLE, count) if count else "-"
            cells.append(exact)
        rows.append(f"| {name}, {head} | {' | '.join(map(str, cells))} |")
    rows += ["", "One triangle is what NumPy computes of X^T X. In units of the whole X^T X:", ""]
    parts = [
        part
        for part in (TRIANGLE, EXACT_TRIANGLE, "Cholesky", "eigh")
        if Key(name, case, part) in engines
    ]
    rows += ["| | " + " | ".join(parts) + " |", "|---|" + "---|" * len(parts)]
    for name in dict.fromkeys(key.data for key in keys):
        whole = engines[Key(name, "second", GRAM)].median
        shares = [engines[Key(name, "second", part)].median / whole for part in parts]
        rows.append(f"| {name} | {' | '.join(f'{share:.2f}' for share in shares)} |")
    return rows


def megabytes(memory: Mapping[Key, float]) -> list[str]:
    if not memory:
        return []
    titles = list(dict.fromkeys(key[2] for key in memory))
    rows = ["| | " + " | ".join(titles) + " |", "|---|" + "---|" * len(titles)]
    for name, case in dict.fromkeys(key[:2] for key in memory):
        cells = [
            f"{memory[key] / 1e6:.0f}" if (key := Key(name, case, title)) in memory else "-"
            for title in titles
        ]
        rows.append(f"| {name}, {TITLES.get(case, case)} | {' | '.join(cells)} |")
    return rows
