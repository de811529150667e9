"""Finds classes with too few units in train or test after a split, before features are computed.

Counts of private labels appear only on the owner's screen, and are never written to a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dpprobe.data.dataset_sizes import needs_every_class
from dpprobe.data.options import ClassUnits
from dpprobe.data.rare_classes import RARE
from dpprobe.study.study import Study

CLASSES_NAMED = 3


def class_split_faults(study: Study, name: str, counts: ClassUnits) -> tuple[list[str], list[str]]:
    """Lists a private dataset's classes that have no training units or too few test units.

    Returns errors and warnings, at most one line per kind of fault. Errors are about classes
    without training units, or without test units that a metric needs.
    """
    dataset, train, test = study.datasets[name], counts.train, counts.test
    unit = "patient" if dataset.named_people().column else "image"
    need, waive = _find_need(study, name)

    def describe(names: Sequence[str], fault: str, remedy: str = "") -> list[str]:
        if not names:
            return []
        one, several = ("label", "labels") if dataset.multi_label() else ("class", "classes")
        start = f"1 {one} has" if len(names) == 1 else f"{len(names):,} {several} have"
        shown = [f"{each} ({train[each]:,} train, {test[each]:,} test)" for each in names]
        more = f" and {len(names) - CLASSES_NAMED:,} more" if len(names) > CLASSES_NAMED else ""
        remedy = remedy or " ".join(_list_remedies(study, name, counts, names, waive=waive))
        return [f"{start} {fault}: {', '.join(shown[:CLASSES_NAMED])}{more}. {remedy}"]

    untrained = [each for each in train if not train[each]]
    untested = [each for each in train if train[each] and not test[each]]
    alone = [each for each in untested if train[each] == 1]
    few = [each for each in train if train[each] and 0 < test[each] < RARE]
    errors = describe(
        untrained, f"no training {unit}", f"Add {unit}s, merge classes, or leave classes out"
    )
    refused = [
        *describe(
            alone,
            f"only one {unit} in total",
            "No split can test it: merge it with another, or leave it out",
        ),
        *describe(
            [each for each in untested if each not in alone],
            f"no test {unit}" + (f", which {need} needs" if need else ""),
        ),
    ]
    warnings = describe(few, f"fewer than {RARE} test {unit}s, too few for any conclusion")
    return (errors + refused, warnings) if need else (errors, refused + warnings)


def _find_need(study: Study, name: str) -> tuple[str | None, bool]:
    """Returns the metric, if any, that needs test units of all classes, and if it may be waived.

    `missing_classes: warn` allows a mean over only some classes or labels. But an AUC of two
    classes needs both classes, and a class without images would add only noise to a release's mean.
    """
    dataset = study.datasets[name]
    if not dataset.multi_label():
        for each, release in study.releases.items():
            if release.dataset == name and release.test_metric not in (None, "accuracy"):
                return f"`evaluate` of release {each}", False
        if dataset.metric == "auc":
            return "`metric: auc`", False
    if dataset.missing_classes == "warn":
        return None, False
    waive = dataset.multi_label() or (dataset.count_classes() or 0) > 2
    if needs_every_class(dataset):
        return (f"`metric: {dataset.metric}`" if dataset.metric else "the metric"), waive
    return ("`missing_classes: error`" if dataset.has_test() else None), waive


def _list_remedies(
    study: Study, name: str, counts: ClassUnits, names: Sequence[str], *, waive: bool
) -> Iterator[str]:
    dataset = study.datasets[name]
    ways = ["merge it with another"]
    if waive:
        ways.append("write `missing_classes: warn` to leave it out of the metric")
    if dataset.has_test():
        yield f"Put some into the test split, or {', or '.join(ways)}"
        return
    fields = type(dataset).model_fields
    keys = "`test`" if "test" in fields else "folders `train` and `test`"
    keys = "`split_column` or `test`" if "split_column" in fields else keys
    ways.insert(0, f"split it yourself ({keys})")
    least = RARE if all(counts.test[each] for each in names) else 1
    fewest = {fraction: min(at[each] for each in names) for fraction, at in counts.test_at.items()}
    if enough := {fraction: units for fraction, units in fewest.items() if units >= least}:
        fractions = ", ".join(f"{fraction:g}" for fraction in enough)
        has = "it would have" if len(names) == 1 else "each would have at least"
        yield f"With test_fraction {fractions} {has} {', '.join(map(str, enough.values()))}:"
        ways.insert(0, "choose one of these")
    words = ", or ".join(ways)
    yield words if enough else words[:1].upper() + words[1:]
    if not any(release.dataset == name for release in study.releases.values()):
        by_id = getattr(dataset, "split_by", "class") == "id" and not dataset.multi_label()
        seed = "`split_by: class` or another `split_seed`" if by_id else "another `split_seed`"
        yield f"(only for benchmarks, {seed}: the choice reveals labels)"
