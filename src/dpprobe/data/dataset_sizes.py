"""How many rows of a dataset are used, and which classes need test rows."""

from __future__ import annotations

from dpprobe.data.options import DatasetOptions
from dpprobe.errors import ConfigError
from dpprobe.shown_text import join_lines


def count_used_rows(dataset: DatasetOptions) -> tuple[int, int] | None:
    """Counts the rows of the train and the test table after `subsample`; None if unknown.

    The count is unknown for a fraction (rows are chosen by name), for a number of patients (only
    the source knows their rows), and if `count_rows` returns None.

    Raises ConfigError if `subsample` names a class that does not exist, or a class has too few
    rows.
    """
    part = dataset.subsample
    if part is None:
        return dataset.count_rows()
    sizes = dataset.class_rows()
    if sizes is not None and (faults := part.list_faults(sizes)):
        raise ConfigError(join_lines(f"subsample: {fault}" for fault in faults))
    each, classes, rows = part.per_class, dataset.count_classes(), dataset.count_rows()
    if each is None or classes is None or rows is None or dataset.named_people().column:
        return None
    return each * classes, rows[1]


def needs_every_class(dataset: DatasetOptions) -> bool:
    """Returns True if the metric covers every class, so that each class needs test rows."""
    if dataset.metric is None:
        return dataset.multi_label() or dataset.count_classes() == 2
    return dataset.metric != "accuracy"
