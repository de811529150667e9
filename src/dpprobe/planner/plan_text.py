"""Plans and warnings in words."""

from __future__ import annotations

from collections.abc import Sequence

from dpprobe.planner.accuracy_plan import Choice, PlanForPeople
from dpprobe.planner.learning_curves import read_curves
from dpprobe.planner.predicted_accuracy import Setting, n_that_would_do, too_few


def plan_in_words(plan: PlanForPeople) -> str:
    """Writes a plan for a terminal."""
    setting, scale = plan.setting, plan.scale
    unknown = "features of a number not given, taken for the most favourable"
    features = f"{setting.dimension:,} features" if setting.dimension else unknown
    lines = [
        f"{setting.n:,} {plan.unit}s, {setting.classes} classes, {features}, epsilon "
        f"{setting.epsilon:g}, delta {setting.delta:g}",
        "",
    ]
    lines += [f"warning: {warning}" for warning in plan.warnings]
    if plan.too_few:
        lines += [f"{too_few_words(setting, plan.would_do, unit=plan.unit)}.", ""]
    lines += [*_write_table(plan), *_name_beaten(plan)]
    lines.append("")
    of = f"a non-private {100 * scale.middle:.0f} %"
    if not scale.given:
        of += ", the middle of the public sets (--ceiling says yours)"
    lines.append(f"Loss to {of}:")
    lines += [
        f"  under {points} points from about {round_count(n):,} {plan.unit}s at epsilon "
        f"{setting.epsilon:g}"
        if n is not None
        else f"  under {points} points: reached by no public set; not to be had, or not told"
        for points, n in plan.n_within.items()
    ]
    return "\n".join(
        [*lines, "", *write_notes(plan.choices, classes=setting.classes, unit=plan.unit)]
    )


def _write_table(plan: PlanForPeople) -> list[str]:
    """Writes one line per choice: the share kept, and accuracies by ceiling."""
    scale = plan.scale
    heads = [f"at a non-private {100 * value:.0f} %" for value in scale.ceilings]
    lines = [f"{'':12} {f'{plan.unit}s':>9} {'epsilon':>7}  {'lead kept':22}" + "".join(
        f"{head:24}" for head in heads
    ).rstrip()]  # fmt: skip
    for choice in plan.choices:
        shares = (choice.kept.low, choice.kept.expected, choice.kept.high)
        cells = [format_span(shares)]
        cells += [
            format_span(choice.kept.predict_accuracy(chance=scale.chance, ceiling=value))
            for value in scale.ceilings
        ]
        lines.append(
            f"{choice.label:12} {choice.n:>9,} {choice.epsilon:>7g}  "
            f"{cells[0]:22}{''.join(f'{cell:24}' for cell in cells[1:])}".rstrip()
        )
    return lines


def format_span(values: Sequence[float]) -> str:
    """Writes low, expected and high in percent: "62% (55 to 70)"."""
    low, expected, high = (round(100 * value) for value in values)
    return f"{expected}% ({low} to {high})"


def beaten_words(accuracy: Sequence[float], majority: float) -> str:
    """Says that an expected accuracy is not above the largest class's share; empty where it is."""
    _, expected, _ = accuracy
    if expected > majority:
        return ""
    return f"no better than always naming the largest class ({100 * majority:.0f} %)"


def _name_beaten(plan: PlanForPeople) -> list[str]:
    """Names the predictions that the majority-class baseline matches; none of equal ones."""
    scale = plan.scale
    if scale.majority <= scale.chance + 1e-9:
        return []
    lines = []
    for ceiling in scale.ceilings:
        below = {
            choice.label: words
            for choice in plan.choices
            if (
                words := beaten_words(
                    choice.kept.predict_accuracy(chance=scale.chance, ceiling=ceiling),
                    scale.majority,
                )
            )
        }
        if below:
            words = next(iter(below.values()))
            lines.append(
                f"Rows {words}, where a non-private head has {100 * ceiling:.0f} %: "
                f"{', '.join(below)}."
            )
    return lines


def write_notes(choices: Sequence[Choice], *, classes: int, unit: str = "image") -> list[str]:
    """Says where the numbers come from, and how far they go."""
    curves = read_curves()
    low, high = (100 * part for part in curves.law.band)
    lines = [
        "Lead kept: (private - chance) / (non-private - chance), both on these images, chance "
        "being 1 / classes. Expected,",
        f"and in brackets the range that held {high - low:.0f} % of fits on public sets that took "
        "no part in predicting them:",
        f"{len(curves.sources)} sets of images ({', '.join(curves.sources)}), "
        f"{len(curves.curves)} curves. Images of other kinds may lie outside.",
        f"More {unit}s also raise the non-private accuracy, which is not counted.",
    ]
    if unit != "image":
        lines.append(
            f"The public sets had one image a unit; what several of a {unit} add is not known."
        )
    if classes > curves.most_classes:
        lines.append(
            f"No public set has so many classes ({curves.most_classes} at most): take it for a "
            "guess."
        )
    sides = {choice.kept.beyond for choice in choices}
    if -1 in sides:
        lines.append("Some of it is below all that was measured: the lowest measured is shown.")
    if 1 in sides:
        lines.append("Some of it is above all that was measured: the highest measured is shown.")
    return lines


def too_few_words(setting: Setting, would_do: int | None, *, unit: str = "image") -> str:
    """Says that a setting has too few units, and how many would do."""
    remedy = (
        f"about {round_count(would_do):,} {unit}s would do"
        if would_do is not None
        else f"no number of {unit}s that was measured would do; take more budget or fewer classes"
    )
    return (
        f"Too few for epsilon {setting.epsilon:g}: with {setting.n:,} {unit}s of "
        f"{setting.classes} classes a private head is expected to do hardly better than naming "
        f"the largest class; {remedy}"
    )


def too_few_warning(
    *,
    n: int,
    classes: int,
    dimension: int | None,
    epsilons: Sequence[float],
    delta: float,
    unit: str = "image",
) -> str | None:
    """Warns of those of a study's epsilons that a dataset is too small for; None for none.

    Says nothing about more classes than were measured: the prediction is a guess there.

    Args:
      unit: what n counts, the unit of privacy.
    """
    if classes > read_curves().most_classes:
        return None
    settings = [
        Setting(n=n, classes=classes, dimension=dimension, epsilon=epsilon, delta=delta)
        for epsilon in sorted(epsilons)
    ]
    short = [setting for setting in settings if too_few(setting)]
    if not short:
        return None
    needed = [(setting, n_that_would_do(setting)) for setting in short]
    each = [
        f"epsilon {setting.epsilon:g} (about {round_count(enough):,} would do)"
        if enough is not None
        else f"epsilon {setting.epsilon:g}"
        for setting, enough in needed
    ]
    return (
        f"{n:,} {unit}s of {classes} classes are too few for {', '.join(each)}: a head is "
        "expected to do hardly better than naming the largest class; `dpprobe plan` "
        "says more"
    )


def round_count(n: int) -> int:
    """Rounds a number of units up to two digits."""
    scale = 10 ** max(len(str(n)) - 2, 0)
    return -(-n // scale) * scale
