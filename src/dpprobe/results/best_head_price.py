"""The privacy cost of selecting the best private cell of a dataset and epsilon by test results.

**Claim.** A cell's privacy statement covers one head of that cell. The best cell was chosen by the
test results of all seeds of all M private cells of the dataset and epsilon. The best cell's name
and heads are functions of the heads of all M cells and of the test examples. So for the training
examples, selection is post-processing of all these heads. So publishing the best cell costs no more
than publishing all heads of all M cells: the composition of all their mechanisms, each once per
seed. The composition's epsilon is exact if no mechanism samples or is repeated, else an upper
bound. For the choice itself, the composition's epsilon is always an upper bound. The composition's
epsilon does not cover the test examples, whose noiseless results decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dpprobe.errors import DataError
from dpprobe.privacy.accountants import Fits, all_together
from dpprobe.privacy.limits import round_up
from dpprobe.privacy.plan import Selection
from dpprobe.privacy.statement import mechanisms_of
from dpprobe.results.cell_record import read_statement


def choice_price(statements: Iterable[Path]) -> float | None:
    """Bounds the epsilon of publishing the best of the private cells of one dataset and epsilon.

    Returns:
      The epsilon at the largest of the cells' deltas; None for fewer than two cells.

    Raises DataError if a file is not the privacy statement of a private cell.
    """
    fits, deltas = [], []
    for path in statements:
        try:
            values = read_statement(path)
            fits.append(_list_fits(values))
            deltas.append(float(values["delta"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: not the privacy statement of a private cell ({error!r}); run the cell "
                "again"
            ) from None
    if len(fits) < 2:
        return None
    return round_up(all_together(fits, max(deltas))[0])


def _list_fits(statement: Mapping[str, Any]) -> Fits:
    selection = statement["selection"]
    return Fits(
        mechanisms=mechanisms_of(statement),
        times=len(statement["seeds"]),
        selection=Selection.from_dict(selection) if selection else None,
    )
