"""Figures and section of representation laws: one panel per budget, setting and split."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import to_hex

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.representation_law import show
from dpprobe.analyses.representation_law.law_record import MEASURES, law_path
from tests.support.cell_files import grid_of, write_cell
from tests.support.law_records import LAYERS, law_record, network, tuned_networks
from tests.support.shown import curves_of, legend_of


def test_a_panel_has_the_frozen_network_the_tuned_ones_and_references() -> None:
    networks = tuned_networks()[:3]
    figure = show.law_figure(law_record(network(), *networks), "residual")
    train, test = figure.axes
    layers = np.arange(LAYERS + 1)
    tuned = [0.9 * rho**layers for rho in (0.8, 0.77, 0.74)]
    shuffled, frozen = np.full(LAYERS + 1, 1.8), 0.9 * 0.8**layers
    noise = np.full(LAYERS + 1, 0.7)
    drawn = [y for _, _, y in curves_of(train)]
    np.testing.assert_allclose(drawn, [noise, shuffled, *tuned, frozen])
    np.testing.assert_allclose([y for _, _, y in curves_of(test)], [shuffled, *tuned, frozen])
    assert all(x.tolist() == layers.tolist() for _, x, _ in curves_of(train))
    named = ["frozen", "head", "last 1 block", "last 2 blocks"]
    assert legend_of(figure) == [*named, "frozen, shuffled labels", "pure noise, fitted rows"]
    lines = [line for line, _, _ in curves_of(train)]
    assert len({to_hex(line.get_color()) for line in lines[2:]}) == 4, "each its own"
    handles = [handle.get_color() for handle in figure.legends[0].get_lines()]
    assert [to_hex(each) for each in handles[:4]] == [
        to_hex(line.get_color()) for line in (lines[-1], *lines[2:5])
    ]
    assert "pure noise, fitted rows" not in legend_of(
        show.law_figure(law_record(network(), *networks), "fuzziness")
    )


def test_a_section_has_tables_for_each_dataset_with_records(tmp_path: Path) -> None:
    records = [law_record(), law_record().model_copy(update={"dataset": "gone"})]
    paths = [law_path(tmp_path, record.dataset, record.backbone) for record in records]
    for path, record in zip(paths, records, strict=True):
        record.write(path)
    cells = [write_cell(tmp_path), write_cell(tmp_path, dataset="other")]
    page = Page(grid=grid_of(tmp_path, *cells), names={"digits": "cifar10"}, folder=tmp_path)
    (part,) = show.make_section(paths, page)
    assert part["dataset"] == "digits"
    assert len(part["tables"]) == 2
    assert "constant_2" in part["tables"][0]
    assert len(show.plot_law(record=paths[0])) == len(MEASURES)
