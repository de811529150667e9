"""The words of a headline: intervals, the ceiling, the choice, and what always answering would get.

The report, the tables, the console and MLflow take them from here.
"""

from __future__ import annotations

from dpprobe.results.best_private import Best, best_private
from dpprobe.results.cautions import list_cautions
from dpprobe.results.cell_record import Measure
from dpprobe.results.paired_difference import PAIRED
from dpprobe.results.summary import Entry, Grid
from dpprobe.results.uncertainty import SEED_INTERVAL

TOLD_APART = (
    "Whether a result differs from its ceiling is told by a 95 % interval of the difference: "
    "paired over test rows, since both were tested on the same ones, with the variance over seeds "
    "added; where test rows are few, or those of a rare class, as if tested on different ones, "
    "which is conservative. Of the best of several it is stretched by what the choice adds, as "
    "its own interval is. With one seed the noise of its training is not in it, which is said."
)
ALWAYS = "always answering the most frequent"
FEW_SEEDS = 5  # of fewer, Student's t is more than 2.8 standard errors
ONE_SEED = "one seed: its training noise is not in this"
HELD_OUT = (
    "The best of several cells has the highest mean partly by luck. Its result is therefore read "
    "on halves of the test rows and of the seeds that took no part in choosing it; choosing by "
    "half of the data, it is rather too low than too high."
)


def best_interval(best: Best) -> str:
    """Writes the ends of the interval of the best result; nothing where there is none."""
    if best.low is None or best.high is None:
        return ""
    return f"{best.low:.1f} to {best.high:.1f}"


def tested_words(entry: Entry) -> str:
    """Names what the interval is over."""
    rows = "test patients" if entry.patients else "test rows"
    return f"seeds and {rows}" if (entry.both_interval or "").startswith(SEED_INTERVAL) else rows


def ceiling_words(best: Best) -> str:
    """Writes where a result stands beside the non-private ceiling; nothing where there is none."""
    beside = best.beside_ceiling
    if best.ceiling is None or beside is None:
        return ""
    ceiling = f"the non-private ceiling of the same backbone ({best.ceiling.mean:.1f}\u00a0%)"
    points = f"{abs(beside.difference):.1f}\u00a0points"
    side = f"{points} {'below' if beside.difference < 0 else 'above'}"
    if beside.low is None or beside.high is None:
        return f"{side} {ceiling}; no interval tells whether that is more than noise"
    rest = f" ({ONE_SEED})" if beside.one_seed else ""
    if beside.apart:
        return f"{side} {ceiling}{rest}"
    how = "" if beside.way == PAIRED else ", taken as tested on other rows"
    return (
        f"not distinguishable from {ceiling}: the difference is {beside.difference:+.1f}\u00a0"
        f"points, 95\u00a0% interval {beside.low:+.1f} to {beside.high:+.1f}{how}{rest}"
    )


def beside_words(best: Best) -> str:
    """Writes what always giving the most frequent answer gets, and the worst class."""
    entry = best.entry
    parts = []
    if constant := constant_words(entry, best.measure):
        stands = beside_constant(best)
        parts.append(
            f"{stands} {ALWAYS}, which has {constant}" if stands else f"{ALWAYS} has {constant}"
        )
    if entry.least is not None:
        parts.append(f"{entry.least_title} {entry.least:.1f}\u00a0% ({entry.least_class})")
    return "; ".join(parts)


def constant_words(entry: Entry, measure: Measure) -> str:
    """Writes what always giving the most frequent answer gets, in the headline's metric first."""
    values = []
    if entry.constant is not None:
        values.append(f"{measure.title} {entry.constant:.1f}\u00a0%")
    if measure.headline != "accuracy" and entry.constant_accuracy is not None:
        values.append(f"accuracy {entry.constant_accuracy:.1f}\u00a0%")
    return " and ".join(values)


def beside_constant(best: Best) -> str:
    """Says where a result is no better than one answer; nothing where its interval lies above."""
    constant = best.entry.constant
    if constant is None or best.low is None or best.high is None or best.low > constant:
        return ""
    return "worse than" if best.high < constant else "not distinguishable from"


def chosen_words(best: Best) -> str:
    """Writes what choosing the best of several does to its mean; nothing where none was chosen."""
    several = f"the best of {best.choice.candidates} private cells"
    if best.uncorrected:
        why = "too few test rows leave unknown" if best.few_rows else "is not known here"
        return f"{several}: its mean is too high by the luck of the choice, which {why}"
    if best.held_out is None:
        return ""
    by = "test rows and seeds" if best.held_out.seeds else "test rows"
    rest = "" if best.held_out.seeds else "; with one seed the luck of its noise stays in"
    return (
        f"{several}: its own mean is {best.entry.mean:.1f}\u00a0%, and "
        f"{best.value:.1f}\u00a0% on {by} that did not choose it{rest}"
    )


def headline_lines(grid: Grid, dataset: str) -> list[str]:
    """Writes sentences on a dataset's headline for the notes of a table.

    They tell the metric and why, what always answering the most frequent would get, the worst
    class of the best private cells, those cells on what did not choose them, and cautions.
    """
    bests = [best for best in best_private(grid, {}) if best.dataset == dataset]
    lines = [grid.reasons[dataset]] if dataset in grid.reasons else []
    constants = (
        constant_words(entry, grid.measures[dataset])
        for key, entry in grid.entries.items()
        if key[0] == dataset and entry.constant is not None
    )
    if constant := next(constants, ""):
        lines.append(f"{ALWAYS[:1].upper()}{ALWAYS[1:]} has {constant}.".replace("\u00a0", " "))
    for stands in ("worse than", "not distinguishable from"):
        if at := [best.epsilon for best in bests if beside_constant(best) == stands]:
            lines.append(f"The best private cells are {stands} {ALWAYS}: at {', '.join(at)}.")
    if least := [best for best in bests if best.entry.least is not None]:
        title = least[0].entry.least_title
        values = ", ".join(
            f"{best.entry.least:.1f} % ({best.entry.least_class}) at {best.epsilon}"
            for best in least
        )
        lines.append(f"{title[:1].upper()}{title[1:]} of the best private cells: {values}.")
    if chosen := [best for best in bests if best.held_out is not None]:
        values = ", ".join(f"{best.value:.1f} % at {best.epsilon}" for best in chosen)
        lines.append(f"The best private cells on what did not choose them: {values}.")
    if beside := [best for best in bests if best.ceiling is not None]:
        unclear = [best.epsilon for best in beside if not _is_apart(best)]
        if unclear:
            lines.append(
                f"Not distinguishable from the non-private ceiling: at {', '.join(unclear)}."
            )
        wide = [best for best in beside if not _is_apart(best) and more_seeds_may_tell(best.entry)]
        if wide:
            lines.append(
                f"More seeds may tell, at {', '.join(best.epsilon for best in wide)}: the "
                f"intervals are wide because {wide[0].entry.seeds} seeds are few."
            )
        if single := [best.epsilon for best in beside if _one_seed(best)]:
            lines.append(
                "One seed: its training noise is not in the comparison with the non-private "
                f"ceiling, at {', '.join(single)}."
            )
    return lines + list(list_cautions(grid, bests, dataset))


def more_seeds_may_tell(entry: Entry) -> bool:
    """Returns True where a cell's interval is wide for its few seeds rather than its test rows."""
    if entry.seeds >= FEW_SEEDS or not entry.over_seeds or entry.rows_low is None:
        return False
    assert entry.rows_high is not None
    if entry.low is None or entry.high is None:
        return False
    return entry.high - entry.low > entry.rows_high - entry.rows_low


def _is_apart(best: Best) -> bool:
    beside = best.beside_ceiling
    return beside is not None and beside.apart


def _one_seed(best: Best) -> bool:
    beside = best.beside_ceiling
    return beside is not None and beside.one_seed
