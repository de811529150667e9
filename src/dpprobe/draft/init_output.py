"""The output of `init` on the screen: the data, the expected accuracy, and next steps."""

from __future__ import annotations

from collections.abc import Iterator

from dpprobe.data.options import ClassUnits
from dpprobe.draft.seen_dataset import Seen
from dpprobe.draft.study_text import EPSILON, Draft
from dpprobe.planner.accuracy_plan import make_plan
from dpprobe.planner.plan_text import (
    beaten_words,
    format_span,
    public_images_words,
    too_few_words,
)
from dpprobe.shown_text import join_lines
from dpprobe.study.run_command import command_line

MOST_SHOWN = 12


def seen_in_words(draft: Draft) -> str:
    seen = draft.seen
    kind = "labels" if seen.multi_label else "classes"
    whose = "" if seen.patients is None else f" of {seen.patients:,} patients"
    lines = [
        f"{seen.place}: {seen.images:,} {seen.example_name}s{whose}, {len(seen.counts)} {kind}",
        "",
    ]
    lines += _list_counts(seen, draft.class_units)
    lines += [
        "",
        f"training:    {draft.n:,} {seen.unit_name}s (unit of privacy: {seen.unit_name}), delta "
        f"{draft.delta:g}",
    ]
    lines += _describe_imbalance(seen)
    dimension = draft.backbone.dimension
    size = "" if dimension is None else f", {dimension:,} features per {seen.example_name}"
    lines.append(f"backbone:    {draft.backbone.name}{size}")
    lines += [f"note:        {note}" for note in seen.notes]
    if changed := ", ".join(draft.list_changed_names()):
        lines.append(f"names:       {changed}; names in a study may have only a-z, 0-9 and _")
    lines += ["", *_list_expected(draft)]
    if draft.offers_public_images:
        lines.append(
            f"{public_images_words(unit=seen.unit_name)}: see `public_datasets` in {draft.output}."
        )
    return join_lines(lines)


def _list_counts(seen: Seen, units: ClassUnits) -> Iterator[str]:
    """Yields one line per class, largest first; if there are many, omits middle-sized classes."""
    order = sorted(seen.counts, key=lambda name: (-seen.counts[name], name))
    shown = order if len(order) <= MOST_SHOWN else [*order[: MOST_SHOWN - 2], "", order[-1]]
    width = max(len(name) for name in shown)
    for name in shown:
        if not name:
            yield f"  ... and {len(order) - len(shown) + 1} more"
            continue
        least = name == order[-1] and seen.counts[name] < seen.counts[order[0]]
        mark = "  (the smallest)" if least else ""
        sides = f"{units.train[name]:>9,} train, {units.test[name]:,} test"
        whose = "" if seen.patients is None else " patients"
        counted = f" (count as {units.test_shares[name]:.1f})" if units.test_shares else ""
        total = f"{seen.counts[name]:>9,} {seen.example_name}s"
        yield f"  {name:{width}}  {total}:{sides}{whose}{counted}{mark}"
    if units.test_shares:
        yield "  In a release's test, a patient with images of several classes counts in parts."


def _describe_imbalance(seen: Seen) -> Iterator[str]:
    ratio = f"imbalance:   {seen.imbalance:.1f} to 1"
    if seen.multi_label:
        yield f"{ratio}; metric: mean AUC over the labels"
    elif not seen.is_imbalanced:
        yield f"{ratio}; metric: accuracy (classes are balanced)"
    else:
        mean = "" if seen.by_patient is None else " (mean over patients)"
        yield (
            f"{ratio}; metric: macro accuracy, because always predicting {seen.largest_class} "
            f"already has an accuracy of {100 * seen.majority_share:.1f}%{mean}"
        )
        yield "             With macro accuracy, `auto` gives rare classes equal weight."


def _list_expected(draft: Draft) -> Iterator[str]:
    """Yields the prediction of `dpprobe plan` at epsilon 1, if images have one label each."""
    seen, n = draft.seen, draft.n
    if seen.multi_label or n < len(seen.counts):
        return
    setting = draft.setting
    # rounded, so that the printed command predicts the same
    majority = min(round(seen.majority_share, 3), 0.999) if seen.is_imbalanced else None
    plan = make_plan(setting, majority=majority, unit=seen.unit_name)
    scale = plan.scale
    accuracies = []
    for ceiling in scale.ceilings:
        accuracy = plan.now.kept.predict_accuracy(chance=scale.chance, ceiling=ceiling)
        beaten = beaten_words(accuracy, majority or seen.majority_share, unit=seen.unit_name)
        accuracies.append(
            f"{format_span(accuracy)} if a non-private head reaches {100 * ceiling:.0f}%"
            + (f": {beaten}" if beaten else "")
        )
    yield f"Expected accuracy at epsilon {EPSILON:g}, predicted from public images of other kinds:"
    yield from (f"  {words}" for words in accuracies)
    yield "  Backbones are not compared: a better backbone has a higher non-private accuracy."
    if seen.is_imbalanced:
        yield (
            "  The study reports macro accuracy, which is below accuracy when classes are unequal."
        )
    if plan.too_few:
        yield f"{too_few_words(setting, plan.would_do, unit=seen.unit_name)}."
    words = ["--n", f"{n}", "--classes", f"{setting.classes}", "--epsilon", f"{EPSILON:g}"]
    words += ["--delta", f"{draft.delta:g}"]
    if setting.dimension:
        words += ["--d", f"{setting.dimension}"]
    if seen.patients is not None:
        words += ["--unit", seen.unit_name]
    if majority is not None:
        words += ["--majority", f"{majority:.3f}"]
    yield f"For other settings: {command_line('dpprobe', 'plan', *words)}"
