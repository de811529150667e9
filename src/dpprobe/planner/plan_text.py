"""Formats accuracy plans, and warnings about them, as text."""

from __future__ import annotations

from collections.abc import Sequence

from dpprobe.planner.accuracy_plan import Choice, PlanForPeople
from dpprobe.planner.learning_curves import read_curves
from dpprobe.planner.predicted_accuracy import (
    Setting,
    n_that_would_do,
    public_images_help,
    too_few,
)
from dpprobe.privacy.risk import Risk, RiskEpsilon, explain_risks


def plan_in_words(plan: PlanForPeople) -> str:
    setting, scale = plan.setting, plan.scale
    unknown = "number of features unknown (assumed: the most favourable; set yours with --d)"
    features = f"{setting.dimension:,} features" if setting.dimension else unknown
    lines = [
        f"{setting.n:,} {plan.unit}s, {setting.classes} classes, {features}, epsilon "
        f"{setting.epsilon:g}, delta {setting.delta:g}",
        *_explain_target(setting.epsilon),
        "",
    ]
    lines += [f"warning: {warning}" for warning in plan.warnings]
    if plan.too_few:
        lines += [f"{too_few_words(setting, plan.would_do, unit=plan.unit)}.", ""]
    lines += [*_write_table(plan), *_name_beaten(plan)]
    lines.append("")
    baseline = f"a non-private baseline of {100 * scale.middle:.0f}%"
    if not scale.given:
        baseline += ", the median of the public sets (set yours with --ceiling)"
    lines.append(f"{plan.unit.capitalize()}s needed for a loss against {baseline}:")
    lines += [
        f"  less than {points} points: about {round_count(n):,} {plan.unit}s at epsilon "
        f"{setting.epsilon:g}"
        if n is not None
        else f"  less than {points} points: unknown, because no public set came that close to its "
        "baseline"
        for points, n in plan.n_within.items()
    ]
    if public_images_help(setting):
        lines += ["", f"{public_images_words(unit=plan.unit)} (docs/few-patients.md)."]
    return "\n".join(
        [*lines, "", *write_notes(plan.choices, classes=setting.classes, unit=plan.unit)]
    )


def _explain_target(epsilon: float) -> list[str]:
    """Explains that epsilon follows from a permitted risk; empty if epsilon was given."""
    if not isinstance(epsilon, RiskEpsilon):
        return []
    mu = Risk.from_token(epsilon.token).to_mu()
    return [
        f"{explain_risks([epsilon])}; mu {mu:.4g}, for Gaussian noise on all examples. Training in "
        "batches and hyperparameter searches have another epsilon at this risk."
    ]


def _write_table(plan: PlanForPeople) -> list[str]:
    """Formats one line per choice: the kept share of the non-private lead, and the accuracies."""
    scale = plan.scale
    heads = [f"if non-private is {100 * value:.0f}%" for value in scale.ceilings]
    lines = [
        f"{'':12} {f'{plan.unit}s':>9} {'epsilon':>7}  {'lead kept':22}"
        + "".join(f"{head:24}" for head in heads).rstrip()
    ]
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
    """Formats low, expected and high in percent: "62% (55 to 70)".

    Example:
      >>> format_span((0.55, 0.62, 0.7))
      '62% (55 to 70)'
    """
    low, expected, high = (round(100 * value) for value in values)
    return f"{expected}% ({low} to {high})"


def beaten_words(accuracy: Sequence[float], majority: float, *, unit: str = "image") -> str:
    """Explains that an accuracy does not exceed the majority class's share; empty if it does."""
    _, expected, _ = accuracy
    if expected > majority:
        return ""
    mean = ", mean over patients" if unit == "patient" else ""
    return f"no better than the majority-class baseline ({100 * majority:.0f}%{mean})"


def _name_beaten(plan: PlanForPeople) -> list[str]:
    """Writes sentences that list predictions not above the majority-class baseline."""
    scale = plan.scale
    if scale.majority <= scale.chance + 1e-9:
        return []
    lines = []
    for ceiling in scale.ceilings:
        below = {}
        for choice in plan.choices:
            accuracy = choice.kept.predict_accuracy(chance=scale.chance, ceiling=ceiling)
            if words := beaten_words(accuracy, scale.majority, unit=plan.unit):
                below[choice.label] = words
        if below:
            words = next(iter(below.values()))
            lines.append(
                f"If a non-private head reaches {100 * ceiling:.0f}%, these are {words}: "
                f"{', '.join(below)}."
            )
    return lines


def write_notes(choices: Sequence[Choice], *, classes: int, unit: str = "image") -> list[str]:
    """Returns notes on the source of the numbers and on their limits."""
    curves = read_curves()
    low, high = (100 * part for part in curves.law.band)
    lines = [
        "The table predicts accuracy with one label per image, not AUC or macro accuracy.",
        "Lead kept = (private - chance) / (non-private - chance), where chance is 1 / classes.",
        f"Brackets: a range that held {high - low:.0f}% of results on public sets that were left "
        "out of the fit.",
        f"Source: {len(curves.curves)} learning curves of {len(curves.sources)} public sets of "
        f"images ({', '.join(curves.sources)}).",
        "Results on images of other kinds may lie outside the brackets.",
        f"More {unit}s also raise the non-private accuracy, which the table does not count.",
    ]
    if any(choice.kept.expected > 1 for choice in choices):
        lines.append("Above 100% the private head is expected to beat the non-private one.")
    if unit != "image":
        lines.append(
            f"Each unit of the public sets had one image; the effect of several images per {unit} "
            "is unknown."
        )
    if classes > curves.most_classes:
        lines.append(
            f"The public sets had {curves.most_classes} classes at most: with {classes:,} classes "
            "the predictions are guesses."
        )
    for side, place, end in ((-1, "below", "lowest"), (1, "above", "highest")):
        if any(choice.kept.beyond == side for choice in choices):
            lines.append(
                f"Settings {place} the measured range show the range's {end} measured value."
            )
    return lines


def too_few_words(setting: Setting, would_do: int | None, *, unit: str = "image") -> str:
    """Explains that a setting has too few units, and how many would be enough."""
    remedy = (
        f"about {round_count(would_do):,} {unit}s are enough"
        if would_do is not None
        else f"no measured number of {unit}s is enough; use a larger epsilon or fewer classes"
    )
    return (
        f"Too few {unit}s for epsilon {setting.epsilon:g}: with {setting.n:,} {unit}s in "
        f"{setting.classes} classes a private head will hardly beat the majority-class baseline; "
        f"{remedy}"
    )


def public_images_words(*, unit: str = "image") -> str:
    return (
        f"With so few {unit}s, public images of a similar kind may raise the accuracy. They need "
        "no labels and cost no privacy"
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
    """Warns if a dataset is too small for some of a study's epsilons; else returns None.

    Also returns None for more classes than any public dataset has, as predictions are then guesses.
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
        f"epsilon {setting.epsilon:g} (about {round_count(enough):,} are enough)"
        if enough is not None
        else f"epsilon {setting.epsilon:g}"
        for setting, enough in needed
    ]
    return (
        f"{n:,} {unit}s in {classes} classes are too few for {', '.join(each)}: a private head "
        "will hardly beat the majority-class baseline; `dpprobe plan` predicts other settings"
    )


def round_count(n: int) -> int:
    """Rounds a number of units up to two significant digits.

    Example:
      >>> round_count(12_345)
      13000
    """
    scale = 10 ** max(len(str(n)) - 2, 0)
    return -(-n // scale) * scale
