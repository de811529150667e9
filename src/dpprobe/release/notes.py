"""Notes for the announcement of a release, in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dpprobe.release import documents
from dpprobe.release.bundle import Bundle, read_bundle

# Added or removed classes that are named, at most.
NAMES_SHOWN = 20


def release_notes(bundle: Path, *, previous: Path | None = None) -> str:
    """Writes what a release is, what it guarantees, its accuracy, limits and how to verify it.

    Args:
      previous: the folder of an earlier one, to say what changed since.

    Raises:
      DataError: when either is not a whole bundle.
    """
    this = read_bundle(bundle)
    other = None if previous is None else read_bundle(previous)
    table = documents.bound_best_attacks(this.statement, documents.RATES)
    template = documents.markdown_environment().get_template("notes.md.j2")
    return template.render(
        **documents.shared_values(this.facts, this.statement, table),
        before=other and other.facts.name,
        changes=list(_list_changes(other, this)) if other else [],
        not_covered=" ".join(documents.as_sentence(text) for text in this.statement["not_covered"]),
    )


def _list_changes(before: Bundle, after: Bundle) -> Iterator[str]:
    """Lists what differs between two releases, a sentence each."""
    first, second = before.facts, after.facts
    if first.dataset != second.dataset:
        yield f"Dataset: {first.dataset}, now {second.dataset}."
    yield from _compare_classes(first.class_names, second.class_names)
    if first.backbone.name != second.backbone.name:
        yield f"Backbone: {first.backbone.name}, now {second.backbone.name}."
    elif first.backbone.weights_sha256 != second.backbone.weights_sha256:
        yield f"Backbone {second.backbone.name}: different weights."
    elif first.backbone.options != second.backbone.options:
        yield (
            f"Backbone {second.backbone.name}: {_compare_options(first.backbone, second.backbone)}."
        )
    heads = first.head.options["head"], second.head.options["head"]
    if heads[0] != heads[1]:
        yield f"Method: {heads[0]}, now {heads[1]}."
    elif options := _compare_options(first.head, second.head):
        yield f"Method: {options}."
    yield from _compare_promises(before.statement, after.statement)
    yield from _compare_accuracy(before.statement["evaluation"], after.statement["evaluation"])
    old, new = before.statement["ledger"], after.statement["ledger"]
    yield f"Ledger: {documents.ledger_sum(old)}, now {documents.ledger_sum(new)}."


def _compare_promises(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Lists the numbers of the promise that differ."""
    old, new = documents.state_formally(before), documents.state_formally(after)
    if old != new:
        yield f"Guarantee: {old}; now {new}."


def _compare_accuracy(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> Iterator[str]:
    """Compares two evaluations of one metric."""
    if before and after and before["metric"] == after["metric"]:
        yield f"{documents.state_measured(before)}; now {documents.state_measured(after)}."


def _compare_classes(before: tuple[str, ...], after: tuple[str, ...]) -> Iterator[str]:
    """Lists the classes that came and went."""
    for words, names in (
        ("New", [name for name in after if name not in before]),
        ("Removed", [name for name in before if name not in after]),
    ):
        if names:
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            yield f"Classes. {words}: {', '.join(names[:NAMES_SHOWN])}{more}."
    if before != after and set(before) == set(after):
        yield "Classes: same names, different order."


def _compare_options(before: Any, after: Any) -> str:
    """Lists the options that differ between two blocks of bundle.json."""
    old, new = dict(_flatten_options(before.options)), dict(_flatten_options(after.options))
    return ", ".join(
        f"{key} from {_show_option(old, key)} to {_show_option(new, key)}"
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    )


def _show_option(values: Mapping[str, Any], key: str) -> str:
    """Writes an option's value, `unset` where there is none."""
    value = values.get(key)
    return "unset" if value is None else str(value)


def _flatten_options(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Lists nested options by dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten_options(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
