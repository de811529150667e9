"""Change of released sums over their sensitivity at n = 1,281,167: float32 sums against exact ones.

Synthetic `l2` rows of a positive mean, d = 1,024, made anew block by block from a seeded
generator. One row is inserted in front of all others, which shifts every block by one; what a sum
then changes by, over what is claimed, is printed. Of the second moment 64 x 1,024 entries are
summed, those of the first columns: a part of a change is no longer than all of it, so a ratio
above 1 there is one of the whole matrix. The row that is inserted lies in those columns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from dpprobe import artifacts
from dpprobe.privacy.grid import entry_bits, factor_bits, grid_step

RESULTS = Path(__file__).resolve().parent / "results" / "large_n.md"
ROWS, DIMENSION, COLUMNS, CLASSES, BLOCK = 1_281_167, 1024, 64, 16, 2048
SUMS = ("second moment", "gradient, or sum by class")


def main() -> None:
    """Prints the table and writes it to bench/results/large_n.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args().rows
    torch.set_num_threads(1)
    counts = sorted({min(rows, n) for n in (200_000, 600_000, rows)})
    changes = {n: ratios(n) for n in counts}
    over = sum(change[name, "exact"] > 1 for change in changes.values() for name in SUMS)
    lines = [
        "# One row in front of n others: change of a sum over its sensitivity",
        "",
        f"`l2` rows with a positive mean, d = {DIMENSION:,}, the first {COLUMNS} columns of the "
        f"second moment, {CLASSES} classes; blocks of {BLOCK:,} rows. Above 1 a price is too low: "
        f"{over} of the exact sums are.",
        "",
        "| sum | added as | " + " | ".join(f"n = {n:,}" for n in counts) + " |",
        "|---" * (len(counts) + 2) + "|",
    ]
    for name in SUMS:
        for kind in ("float32", "exact"):
            values = " | ".join(f"{changes[n][name, kind]:.4f}" for n in counts)
            lines.append(f"| {name} | {kind} | {values} |")
    text = "\n".join([*lines, ""])
    print(text)
    if rows == ROWS:
        artifacts.write_text(RESULTS, text)


def ratios(count: int) -> dict[tuple[str, str], float]:
    """The change by the inserted row over the sensitivity 1, by (sum, kind)."""
    inserted = torch.zeros((1, DIMENSION))
    inserted[0, :COLUMNS] = COLUMNS**-0.5
    without, within = (sums(count, front) for front in (inserted[:0], inserted))
    return {key: float((within[key] - without[key]).norm()) for key in within}


def sums(count: int, front: torch.Tensor) -> dict[tuple[str, str], torch.Tensor]:
    """All sums over the rows, those of `front` first, float64."""
    step = grid_step(1.0, entry_bits(ROWS))
    factor_step = grid_step(1.0, factor_bits(ROWS))
    shapes = {SUMS[0]: (COLUMNS, DIMENSION), SUMS[1]: (CLASSES, DIMENSION)}
    totals = {
        (name, kind): torch.zeros(shape, dtype=kinds)
        for name, shape in shapes.items()
        for kind, kinds in (("float32", torch.float32), ("exact", torch.float64))
    }
    for start, block in shifted(count, front):
        targets = torch.zeros((len(block), CLASSES))
        targets[torch.arange(len(block)), (torch.arange(start, start + len(block))) % CLASSES] = 1
        on_grid = block.double().div_(step).trunc_()
        factors = targets.double().div_(factor_step).trunc_()
        for name, left, exact in (
            (SUMS[0], block[:, :COLUMNS], on_grid[:, :COLUMNS]),
            (SUMS[1], targets, factors),
        ):
            totals[name, "float32"].addmm_(left.T, block)
            totals[name, "exact"].addmm_(exact.T, on_grid)
    units = {SUMS[0]: step**2, SUMS[1]: step * factor_step}
    return {
        (name, kind): total.double() * (units[name] if kind == "exact" else 1)
        for (name, kind), total in totals.items()
    }


def shifted(count: int, front: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields blocks of `front` and then of the others, with the number of the first row.

    Rows of `front` have negative numbers, so the others keep theirs.
    """
    held, start = front, -len(front)
    for drawn in drawn_rows(count):
        held = torch.cat([held, drawn])
        while len(held) >= BLOCK:
            yield start, held[:BLOCK]
            held, start = held[BLOCK:], start + BLOCK
    if len(held):
        yield start, held


def drawn_rows(count: int) -> Iterator[torch.Tensor]:
    """Yields unit rows, half of whose length is their common mean."""
    generator = np.random.Generator(np.random.SFC64(0))
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        rows = torch.from_numpy(generator.standard_normal((size, DIMENSION), dtype=np.float32))
        rows += 1
        yield torch.nn.functional.normalize(rows)


if __name__ == "__main__":
    main()
