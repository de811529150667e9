"""The option that says by what a source without a test set is split, and its use in a release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dpprobe import artifacts
from dpprobe.data import train_test_split
from dpprobe.data.options import DatasetOptions
from dpprobe.data.train_test_split import SplitBy


class SplitOptions(DatasetOptions):
    """Options of a source that is split here, by `test_fraction` and `split_seed`."""

    split_by: SplitBy = Field(
        "class",
        description="How test rows are chosen where there is no test split: class takes the "
        "fraction of each class; id takes each row, or patient, by a hash of its name alone, so "
        "that none can move another. A release needs id.",
    )

    def preparation_params(self) -> dict[str, Any]:
        """Returns the options that decide the split tables; `split_by` only where it is id.

        So tables that were made before there was such an option are still current.
        """
        params = super().preparation_params()
        if self.split_by == "class":
            del params["split_by"]
        return params

    def choose_test(self, ids: Sequence[str], labels: Sequence[int]) -> list[bool]:
        """Chooses the rows that are tested on: True for a test row, in the order of the ids."""
        values = self.model_dump(include={"split_seed", "test_fraction"})
        return train_test_split.choose_test(
            ids,
            labels,
            fraction=values["test_fraction"],
            seed=values["split_seed"],
            by=self.split_by,
        )

    def release_fault(self) -> str | None:
        return self.subsample_fault() or self.split_fault(own_test=self.has_test())

    def split_fault(self, *, own_test: bool) -> str | None:
        """Returns what `release_fault` does, for a source with or without a test set."""
        if own_test or self.split_by == "id":
            return None
        return (
            "split_by: class chooses test rows by their rank within their class, so that one can "
            "move another across the boundary; write split_by: id"
        )

    def split_rule(self) -> str:
        return self.rule_of_split(own_test=self.has_test())

    def split_key(self) -> str:
        return self.key_of_split(own_test=self.has_test())

    def split_follows_names(self) -> bool:
        return not self.has_test() and self.split_by == "id" and self.names_rows()

    def names_rows(self) -> bool:
        """Returns True if a column names each row, or its patient.

        Ids that are paths change with the folders, and places in a file with the rows before them.
        """
        columns = self.model_dump(include={"unit_column", "id_column"})
        return any(column is not None for column in columns.values())

    def rule_of_split(self, *, own_test: bool) -> str:
        """Returns what `split_rule` does, for a source with or without a test set."""
        if own_test:
            return "source"
        values = self.model_dump(include={"split_seed", "test_fraction"})
        return f"{self.split_by}, seed {values['split_seed']}, fraction {values['test_fraction']}"

    def key_of_split(self, *, own_test: bool) -> str:
        """Returns what `split_key` does, for a source with or without a test set.

        Options that decide what an id, or a side, is read from stand in it as a short hash.
        """
        names = self.side_options(own_test=own_test)
        written = self.model_dump(mode="json", include=names, exclude_defaults=True)
        digest = f", options {artifacts.fingerprint(written)[:12]}" if written else ""
        return f"{self.rule_of_split(own_test=own_test)}{digest}"

    def side_options(self, *, own_test: bool) -> set[str]:  # noqa: ARG002
        """Returns the options that say where a row's side, or else its id, is read from."""
        return set()
