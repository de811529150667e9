"""Writes the verdict on the best private head, for the report, tables, console and MLflow."""

from __future__ import annotations

from collections.abc import Sequence

from dpprobe.planner.plan_text import round_count
from dpprobe.privacy.risk import budget_in_full
from dpprobe.results.best_private import Best
from dpprobe.results.cautions import list_cautions
from dpprobe.results.cell_record import Measure
from dpprobe.results.summary import Entry, Grid
from dpprobe.results.uncertainty import SEED_INTERVAL

FEW_SEEDS = 5  # with fewer seeds, half of Student's t interval is over 2.8 standard errors
TELLING = 2.0  # smallest relevant difference from the non-private baseline, in points
BASELINE = "the non-private baseline"
UNEQUAL = (
    f"It is above {BASELINE}, so the comparison may be unequal: a head without privacy that "
    "optimises the same metric should not be worse. Compare with the method itself at ε = inf."
)
MAJORITY = "the majority-class baseline"


def best_interval(best: Best) -> str:
    low, high = best.entry.both_low, best.entry.both_high
    return "" if low is None or high is None else f"{low:.1f} to {high:.1f}"


def tested_words(entry: Entry) -> str:
    """Names the units of a result's interval: test examples or patients, and seeds if they vary."""
    units = _name_units(entry)
    return f"seeds and {units}" if (entry.both_interval or "").startswith(SEED_INTERVAL) else units


def _name_units(entry: Entry) -> str:
    return "test patients" if entry.patients else "test examples"


def verdict(best: Best) -> str:
    """States the result of a dataset's best private head at one epsilon."""
    interval = f" (95% CI {best_interval(best)})" if best_interval(best) else ""
    elsewhere = ""
    if best.highest_ceiling is not None and best.highest_ceiling is not best.ceiling:
        elsewhere = f"; {best.highest_ceiling.mean:.1f}% on the best backbone"
    references = (
        (BASELINE, best.ceiling.mean if best.ceiling else None, elsewhere),
        (MAJORITY, best.entry.constant, ""),
    )
    beside = [
        f"{_say_difference(best.entry.mean - value)} {name} ({value:.1f}%{more})"
        for name, value, more in references
        if value is not None
    ]
    return (
        f"At ε = {budget_in_full(best.head_epsilon)} the best private head reaches "
        f"{best.entry.mean:.1f}% "
        f"{best.measure.title}{interval}{', ' if beside else ''}{' and '.join(beside)}."
        f"{_say_accuracy(best)}"
    )


def _say_accuracy(best: Best) -> str:
    """States the accuracy of a result and of the baselines if the headline is another metric."""
    accuracy, constant = best.entry.accuracy, best.entry.constant_accuracy
    if best.measure.is_accuracy or best.measure.multi_label or None in (accuracy, constant):
        return ""
    ceiling = best.ceiling.accuracy if best.ceiling else None
    baseline = "" if ceiling is None else f"{BASELINE}: {ceiling:.1f}%; "
    return f" Its accuracy is {accuracy:.1f}% ({baseline}{MAJORITY}: {constant:.1f}%)."


def _say_difference(points: float) -> str:
    return f"{abs(points):.1f} points {'below' if points < 0 else 'above'}"


def list_doubts(best: Best) -> list[str]:
    """Lists the caveats on the numbers of a verdict, one sentence each."""
    doubts = [text for text in (baseline_doubt(best), majority_doubt(best)) if text]
    if best.beside_ceiling is not None and best.beside_ceiling.one_seed:
        doubts.append("One seed: the intervals ignore training noise.")
    return doubts


def baseline_doubt(best: Best) -> str:
    """Explains why a result may equal or exceed the non-private baseline; empty if it is below."""
    beside = best.beside_ceiling
    if beside is None:
        return ""
    if beside.apart:
        return UNEQUAL if beside.difference > 0 and not beside.one_seed else ""
    if beside.low is None or beside.high is None:
        return f"No interval shows whether it differs from {BASELINE}."
    interval = f"95% CI of the difference {beside.low:+.1f} to {beside.high:+.1f} points"
    if max(-beside.low, beside.high) <= TELLING:
        return f"The difference from {BASELINE} is within noise ({interval})."
    wanted = f"{round_count(beside.units_to_tell(best.entry.test_units, least=TELLING)):,}"
    few = _name_units(best.entry)
    needed = f"at least {wanted} {few}"
    if more_seeds_may_tell(best.entry):
        few = f"seeds ({best.entry.seeds}) or {few}"
        needed = f"{FEW_SEEDS} seeds or {needed}"
    return f"Too few {few} to distinguish it from {BASELINE} ({interval}): {needed} needed."


def majority_doubt(best: Best) -> str:
    """Returns a warning if a result may be no better than the majority-class baseline, else ""."""
    constant, low, high = best.entry.constant, best.entry.both_low, best.entry.both_high
    if constant is None or low is None or high is None or low > constant:
        return ""
    if high < constant:
        return f"It is worse than {MAJORITY}."
    return f"Its interval includes {MAJORITY}."


def majority_words(entry: Entry, measure: Measure) -> str:
    """States the majority-class baseline's headline metric, then its accuracy if different."""
    values = []
    if entry.constant is not None:
        values.append(f"{entry.constant:.1f}% {measure.title}")
    if measure.headline != "accuracy" and entry.constant_accuracy is not None:
        values.append(f"{entry.constant_accuracy:.1f}% accuracy")
    mean = " (mean over test patients)" if values and entry.patients else ""
    return f"{', '.join(values)}{mean}"


def choice_words(best: Best) -> str:
    """Warns of selection bias in the result of the best of several heads; empty for one head."""
    if best.choice.candidates < 2:
        return ""
    return (
        f"Selected from {best.choice.candidates} private heads by test results, so "
        f"{best.entry.mean:.1f}% tends to be too high (selection bias)."
    )


def headline_lines(grid: Grid, bests: Sequence[Best], dataset: str) -> list[str]:
    """Writes a table's notes on a dataset: metric, baseline, worst class, doubts, cautions."""
    bests = [best for best in bests if best.dataset == dataset]
    lines = [grid.reasons[dataset]] if dataset in grid.reasons else []
    constants = (
        majority_words(entry, grid.measures[dataset])
        for key, entry in grid.entries.items()
        if key[0] == dataset and entry.constant is not None
    )
    if constant := next(constants, ""):
        lines.append(f"Majority-class baseline: {constant}.")
    if least := [best for best in bests if best.entry.least is not None]:
        values = [worst_class(best) for best in least]
        title = upper_first(least[0].entry.least_title)
        lines.append(f"{title} of the best private head: {_by_epsilon(least, values)}.")
    if several := [best for best in bests if best.choice.candidates > 1]:
        counts = [f"best of {best.choice.candidates}" for best in several]
        lines.append(
            "The best private head is selected by test results, so its result tends to be too high "
            f"(selection bias): {_by_epsilon(several, counts)}."
        )
    doubts: dict[str, list[str]] = {}
    for best in bests:
        for doubt in list_doubts(best):
            doubts.setdefault(doubt, []).append(best.budget)
    lines += [f"ε = {', '.join(at)}: {doubt}" for doubt, at in doubts.items()]
    return lines + list(list_cautions(grid, dataset))


def worst_class(best: Best) -> str:
    """States the recall of the worst class, or the AUC of the worst label, with its name."""
    kind = "label" if best.measure.multi_label else "class"
    return f"{best.entry.least:.1f}% ({kind} {best.entry.least_class})"


def upper_first(text: str) -> str:
    """Capitalises only the first letter; unlike `str.capitalize`, keeps "AUC" unchanged."""
    return text[:1].upper() + text[1:]


def _by_epsilon(bests: Sequence[Best], values: Sequence[str]) -> str:
    return ", ".join(
        f"{value} at ε = {best.budget}" for best, value in zip(bests, values, strict=True)
    )


def more_seeds_may_tell(entry: Entry) -> bool:
    """Returns True if a cell's interval is wide because of few seeds, not of few test examples."""
    if entry.seeds >= FEW_SEEDS or not entry.over_seeds or entry.rows_low is None:
        return False
    assert entry.rows_high is not None
    if entry.low is None or entry.high is None:
        return False
    return entry.high - entry.low > entry.rows_high - entry.rows_low
