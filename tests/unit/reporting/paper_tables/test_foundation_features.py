"""Tables of the foundation-features paper: measured cells in their places, else blank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.paper_tables import paper_cell, paper_run, rows_as_text, table_of


def test_an_epsilon_that_the_paper_does_not_state_is_marked() -> None:
    table = table_of(paper_run([]), "foundation_features_table2")
    marked = {(row["Data"], row["ε"]) for row in rows_as_text(table) if "‡" in row["ViT+LC"]}
    assert marked == {("MNIST", "1.2"), ("Fashion-MNIST", "2.7")}
    assert "is inferred" in table.notes[0]


def test_the_note_names_the_command_that_runs_what_is_blank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [paper_cell(tmp_path, dataset="cifar10", epsilon="0.5")]
    table = table_of(paper_run(cells), "foundation_features_table2")
    words = "paper_tables --cores all --configfile config/foundation_features.yaml`"
    assert f"`snakemake {words}" in table.notes[1]
    monkeypatch.chdir(tmp_path)  # not the root of a clone
    table = table_of(paper_run(cells), "foundation_features_table2")
    assert f"`dpprobe run {words}" in table.notes[1]
