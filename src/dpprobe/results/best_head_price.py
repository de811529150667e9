"""The privacy cost of selecting the best private cell of a dataset and epsilon by test results.

**Claim.** A cell's privacy statement covers one head of that cell. The best of the M private cells
of a dataset and epsilon is selected by the test results of all seeds of the M cells. So the best
cell's name and heads are functions of the test examples and of the heads of all M cells. For the
training examples, selection is therefore post-processing of the heads of all M cells. Publishing
the best cell costs at most the composition of all mechanisms of the M cells, each mechanism once
per seed. If no mechanism samples or is repeated, the composition's epsilon is exact for publishing
all heads. It is an upper bound for publishing only the best cell. Test examples are not covered,
because test results without noise decide the selection.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dpprobe.errors import DataError
from dpprobe.privacy.accountants import Fits, all_together
from dpprobe.privacy.limits import round_up
from dpprobe.privacy.plan import Selection
from dpprobe.privacy.stated_facts import mechanisms_of
from dpprobe.results.cell_record import read_statement


def choice_price(statements: Iterable[Path]) -> float | None:
    """Bounds the epsilon of publishing the best private cell of one dataset and epsilon.

    The bound holds at the largest of the cells' deltas. Returns None for fewer than two cells.
    Raises DataError if a file is not the privacy statement of a private cell.
    """
    fits, deltas = [], []
    for path in statements:
        try:
            values = read_statement(path)
            fits.append(fits_of_statement(values))
            deltas.append(float(values["delta"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: not the privacy statement of a private cell ({error!r}); run the cell "
                "again"
            ) from None
    if len(fits) < 2:
        return None
    return round_up(all_together(fits, max(deltas))[0])


def fits_of_statement(statement: Mapping[str, Any]) -> Fits:
    """Reads the fits from a private cell's statement; raises KeyError or TypeError if malformed."""
    selection = statement["selection"]
    return Fits(
        mechanisms=mechanisms_of(statement),
        times=len(statement["seeds"]),
        selection=Selection.from_dict(selection) if selection else None,
    )
