"""Facts about published numbers name studies, pages and weights that exist."""

from __future__ import annotations

from pathlib import Path

from dpprobe.study import catalog
from reproduction import facts

ROOT = Path(__file__).resolve().parents[3]


def test_studies_and_pages_that_are_named_are_there() -> None:
    read = facts.read()
    files = [entry.study for entry in read.entries if entry.study]
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert files
    assert all(w.nearest in catalog.backbone_entries() for w in read.weights.values() if w.nearest)


def test_stored_results_equal_those_on_their_pages() -> None:
    kept = facts.read().kept
    assert kept
    for item in kept:
        page = (ROOT / item.page).read_text(encoding="utf-8")
        assert f"{item.mean} ± {item.deviation} ({item.seeds} seeds)" in page


def test_weights_of_a_catalog_backbone_are_the_catalogs() -> None:
    options = [entry["options"] for entry in catalog.backbone_entries().values()]
    for weights in facts.read().weights.values():
        if weights.access == "public":
            assert weights.backbone in options
