"""The facts on which a dataset's guarantee depends: units, and how a unit may affect others.

Studies, releases, sites and the estimator all use `promise_facts`. A manifest of features also
contains these facts, for fits in other studies or on other machines. A fit uses a fact, states it,
or refuses the data because of it:

| fact | a unit could otherwise |
|---|---|
| `unit_column`, `images_per_patient` | count once per image, as several units |
| `split_fault` | move another unit between training and test |
| `images_fault` | let in another image of the patient |
| `labels_fault` | reveal a label in n |
| `subsample`, `subsample_fault` | change which other units are trained on, or reveal a label in n |
| `copies` | be in the training split several times |
| `test_copies` | be in the test split several times, and use budget for each in test results |
| `copies_across`, `compared`, `ids_across` | be in both splits, and use budget for both |
| `same_units_as` | be in two datasets, and use budget for both |

`subsample_fault` also refuses the datasets that a study's block `imbalance` adds: their `fractions`
choose rows of a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from dpprobe.data.options import DatasetOptions


@dataclass(frozen=True, kw_only=True)
class PromiseFacts:
    """The facts of a dataset on which a guarantee depends.

    Attributes:
      unit_column: the column that names the patient of each image; None without patients.
      images_per_patient: the largest number of a patient's training images, by a public rule.
      split_rule, split_fault, images_fault: see `dpprobe.data.options.PublicSplit`.
      labels_fault: see `dpprobe.data.options.DatasetOptions.explain_labels_used`.
      subsample: the public `fraction` and `public_seed` that chose training rows only by name.
      subsample_fault: why no guarantee covers the choice of training rows, with the remedy.
      same_units_as: the dataset that is declared to share units with this dataset.
      copies: counts of training rows with an earlier row's image, by unit; None if not counted.
      test_copies: the same counts of test rows.
      copies_across: the number of images that are in both splits; None if not counted.
      ids_across: the number of ids that are in both splits; None if no column names the ids.
    """

    unit_column: str | None = None
    images_per_patient: int | None = None
    split_rule: str = "source"
    split_fault: str | None = None
    images_fault: str | None = None
    labels_fault: str | None = None
    subsample: Mapping[str, Any] | None = None
    subsample_fault: str | None = None
    same_units_as: str | None = None
    copies: Mapping[str, Mapping[str, Any]] | None = None
    test_copies: Mapping[str, Mapping[str, Any]] | None = None
    copies_across: int | None = None
    ids_across: int | None = None

    @property
    def compared(self) -> tuple[str, ...]:
        """The properties by which images of both splits were compared; empty if not compared."""
        if self.copies_across is None or self.copies is None:
            return ()
        return tuple(str(self.copies["image"]["by"]).split(" and "))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Reads facts that `to_dict` wrote; raises TypeError for unknown facts."""
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns the facts that differ from their defaults, JSON-compatible."""
        plain = vars(PromiseFacts())
        return {key: value for key, value in asdict(self).items() if value != plain[key]}

    def list_promise_faults(self, unit: str) -> list[str]:
        """Explains why no private fit may use the training rows, with remedies; mostly empty.

        Args:
          unit: the unit of privacy; "image" or "row" for units of one row.
        """
        of_images = unit in ("image", "row")
        choice = self.subsample_fault or self.split_fault
        faults = (self.labels_fault, choice, of_images and self.images_fault)
        return [fault for fault in faults if fault]

    def tested_fault(self) -> str | None:
        """Explains why private test results may not be released with a private head; else None.

        Adding up both costs instead would not do, because a published epsilon must not depend on
        whether private images are copies.
        """
        if self.copies_across:
            what = "an image is in both splits (equal bytes or pixels)"
            remedy = "Remove the copy from one split (`duplicates: error` lists the copies)"
        elif self.ids_across:
            what = "an id of `id_column` is in both splits"
            remedy = "Keep each item in one split, or give different items different ids"
        else:
            return None
        return (
            f"{what}, so one person would pay for the head and for what is measured on test "
            f"images. {remedy}, or measure nothing on test images"
        )

    def count_copies(self, unit: str, *, tested: bool = False) -> Mapping[str, Any] | None:
        """Returns counts of rows that repeat another unit's image; None without such rows.

        `tested` counts test rows in place of training rows.
        """
        word = {"row": "image", "group": "patient"}.get(unit, unit)
        copies = ((self.test_copies if tested else self.copies) or {}).get(word)
        return copies if copies and copies["rows"] else None


def promise_facts(
    dataset: DatasetOptions,
    *,
    copies: Mapping[str, Mapping[str, Any]] | None = None,
    copies_across: int | None = None,
) -> PromiseFacts:
    """Returns a dataset's facts; counts of copies are known after its split tables are made."""
    split, part, people = dataset.public_split(), dataset.subsample, dataset.named_people()
    chosen = None
    if part is not None and part.fraction is not None:
        chosen = {"fraction": part.fraction, "public_seed": part.seed}
    return PromiseFacts(
        unit_column=people.column,
        images_per_patient=people.most_images,
        split_rule=split.rule,
        split_fault=split.fault,
        images_fault=split.images_fault,
        labels_fault=dataset.explain_labels_used(),
        subsample=chosen,
        subsample_fault=None if part is None else part.explain_labels_used(),
        same_units_as=dataset.same_units_as,
        copies=copies,
        copies_across=copies_across,
    )
