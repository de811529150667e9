"""The tables of representation laws: the laws of each network, and accuracy by tuned blocks.

Not private: all numbers come from private examples without noise, as the tables' notes say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dpprobe.analyses.representation_law.law_record import (
    LAW_TABLES,
    MEASURES,
    LawRecord,
    NetworkLaws,
    Setting,
    Split,
    read_laws,
)
from dpprobe.exhibits.published import Number, Published
from dpprobe.exhibits.tables import BLANK, Table, TableCell, make_row, make_table, mean_cell
from dpprobe.privacy.limits import INFINITE
from dpprobe.privacy.risk import budget_order, budget_words
from dpprobe.results.summary import Entry, Grid, read_grid
from dpprobe.study.ablations import keep_unique

NOT_PRIVATE = "Not private: computed from training and test rows without noise."
SETTINGS: dict[Setting, str] = {
    "frozen": "frozen",
    "constant": "constant",
    "searched": "tuned, unpriced",
}
TITLES = {
    "fuzziness": "fuzziness",
    "separability": "separability",
    "residual": "residual",
    "residual_one_hot": "one-hot residual",
}
_NAMED = ("<backbone", "<method", "<options", "<tuned")
SPLITS: dict[Split, str] = {"train": "training", "test": "test"}
INVERTED = (
    "Separability is Tr[SS_b SS_w^+], which the paper on representation laws prints as D. It "
    "grows as classes move apart, although the paper's text says that D falls. Fuzziness is "
    "Tr[SS_w SS_b^+], as He and Su (2023) define D. It falls by a factor per layer; this is the "
    "law."
)
UNPRICED = (
    "Tuned, unpriced: as in the paper, a search on the private rows chose the options, and no "
    "epsilon covers this search. Not for release."
)
PUBLISHED = (
    "Published: the representation-law paper, δ 1e-3; for 1 to 12 tuned blocks the paper prints "
    "only the lowest and the highest result, without their numbers of blocks. It does not state "
    "which end of the network is tuned, nor which options were searched."
)
_LAWS = (
    "ρ: factor per layer, fitted to the logarithms of blocks 1 to L by least squares. Its 95% "
    "interval assumes independent layers, although layers depend on each other. Shuffled: ρ with "
    "shuffled labels, which depends only on widths and ranks. A ρ close to the shuffled ρ shows "
    "nothing about the classes. Residual: error of a linear prediction of the class number, as in "
    "the paper. On training rows it mostly reflects degrees of freedom, because the prediction "
    "was fitted to them; test rows are held out. One-hot: one target per class; mean over "
    "classes."
)


def make_law_tables(
    *, records: Sequence[Path], summary: Path, published: Published, name: str, dataset: str
) -> list[Table]:
    """Reads records and the summary of a dataset, and makes the dataset's tables."""
    grid = read_grid([summary])
    return law_tables(read_laws(records), grid, published, dataset=dataset, name=name)


def law_tables(
    records: Sequence[LawRecord], grid: Grid, published: Published, *, dataset: str, name: str
) -> list[Table]:
    """Makes two tables of a dataset: the laws, and the accuracy with published results.

    Args:
      name: the dataset's name in the published numbers.
    """
    mine = [record for record in records if record.dataset == dataset]
    numbers = published_laws(published, name, mine)
    return [
        law_table(mine, dataset=dataset),
        accuracy_by_blocks(mine, grid, dataset=dataset, published=numbers),
    ]


def published_laws(published: Published, name: str, records: Sequence[LawRecord]) -> list[Number]:
    """Returns published results of tuned blocks, with the records' number of training examples."""
    rows = {record.train_rows for record in records}
    return [
        number
        for number in published.select_numbers(dataset=name, tuning="blocks", metric="accuracy")
        if number.train_rows in rows
    ]


def law_table(records: Sequence[LawRecord], *, dataset: str) -> Table:
    """Makes the table of laws: one row per network and split."""
    rows = []
    for record in records:
        for network in sort_networks(record.networks):
            for split, words in SPLITS.items():
                rows.append(
                    make_row(
                        record.backbone,
                        network.method or "",
                        SETTINGS[network.setting],
                        network.tuned or "",
                        shown_epsilon(network.epsilon),
                        words,
                        *_law_cells(network, split),
                        _format_layers(i.layer for i in network.left_out if i.split == split),
                    )
                )
    columns = [*_NAMED, "ε", "<rows"]
    for name in map(TITLES.__getitem__, MEASURES):
        columns += [f"±ρ {name}", f"R² {name}", f"ρ shuffled {name}"]
    return make_table(
        f"{dataset}_{LAW_TABLES[0]}",
        f"Representation laws of {dataset}, not private",
        [*columns, "<layers left out"],
        rows,
        [f"{NOT_PRIVATE} {INVERTED} {_LAWS} {UNPRICED}", *left_out_notes(records)],
    )


def _law_cells(network: NetworkLaws, split: Split) -> list[TableCell]:
    cells = []
    for measure in MEASURES:
        series = network.find_series(measure, split)
        law, null = series.law, series.null
        cells += [
            mean_cell(law.rho, law.low, law.high, scale=1, digits=3) if law else BLANK,
            _number_cell(law.r_squared if law else None, digits=2),
            _number_cell(null.rho if null else None, digits=3),
        ]
    return cells


def _number_cell(value: float | None, *, digits: int) -> TableCell:
    return BLANK if value is None else TableCell(text=f"{value:.{digits}f}", value=value)


def _format_layers(layers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(layers))))


def left_out_notes(records: Sequence[LawRecord]) -> list[str]:
    """Lists the layers that have no value of a measure, with reasons: one line per backbone."""
    notes = []
    for record in records:
        groups: dict[tuple[str, str], set[int]] = {}
        for network in record.networks:
            for item in network.left_out:
                names = ", ".join(TITLES[measure] for measure in item.measures)
                words = f"{names} on {SPLITS[item.split]} rows"
                groups.setdefault((words, item.reason), set()).add(item.layer)
        if groups:
            parts = [
                f"{words}, layers {_format_layers(layers)}: {reason}"
                for (words, reason), layers in groups.items()
            ]
            notes.append(f"Left out, {record.backbone}: {'; '.join(parts)}.")
    return notes


def accuracy_by_blocks(
    records: Sequence[LawRecord], grid: Grid, *, dataset: str, published: Sequence[Number] = ()
) -> Table:
    """Makes the table of test results by tuned part: one row per method, one column per epsilon.

    Published results are first. Methods without a measured law, such as heads on frozen
    features, are last.
    """
    stated = {number.single_epsilon for number in published} - {None}
    measured = {epsilon for name, epsilon, *_ in grid.entries if name == dataset}
    epsilons = sorted({*measured, *(epsilon for epsilon in stated if epsilon)})
    rows = _published_rows(published, epsilons)
    for record in records:
        seen: set[str] = set()
        for network in sort_networks(record.networks):
            if network.method is None or network.method in seen:
                continue
            seen.add(network.method)
            words = SETTINGS[network.setting], network.tuned or ""
            rows.append(
                _result_row(record.backbone, network.method, words, grid, dataset, epsilons)
            )
        for backbone, method in grid.columns:
            if backbone == record.backbone and method not in seen:
                words = _others_words(grid, dataset, (backbone, method))
                row = _result_row(backbone, method, words, grid, dataset, epsilons)
                if any(cell.value is not None for cell in row):
                    rows.append(row)
    measure = grid.measures.get(dataset)
    return make_table(
        f"{dataset}_{LAW_TABLES[1]}",
        f"Test results of {dataset} by tuned blocks",
        (
            "<backbone",
            "<method",
            "<options",
            "<tuned",
            *(f"±{_epsilon_title(e)}" for e in epsilons),
        ),
        rows,
        [
            f"{measure.title if measure else 'result'} on test rows, in percent: the mean over "
            f"seeds with a 95% interval. Not private. {UNPRICED}",
            *([PUBLISHED] if published else []),
        ],
    )


def _published_rows(
    published: Sequence[Number], epsilons: Sequence[float]
) -> list[tuple[TableCell, ...]]:
    """Makes one row per published number of tuned blocks (or range) and learning rate."""
    rows = []
    for blocks, rate in keep_unique((number.blocks, number.learning_rate) for number in published):
        same = [n for n in published if (n.blocks, n.learning_rate) == (blocks, rate)]
        count = f"{blocks[0]} to {blocks[1]}" if isinstance(blocks, tuple) else blocks
        cells = []
        for epsilon in epsilons:
            values = sorted(n.value for n in same if n.single_epsilon == epsilon)
            cells.append(_range_cell(values))
        options = "constant" if rate == "constant" else "tuned, unpriced"
        model = same[0].model or ""
        rows.append(make_row(model, "published", options, f"{count} blocks", *cells))
    return rows


def _range_cell(values: Sequence[float]) -> TableCell:
    if not values:
        return BLANK
    if values[0] == values[-1]:
        return TableCell(text=f"{values[0]:g}", value=values[0])
    return TableCell(text=f"{values[0]:g} to {values[-1]:g}")


def _others_words(grid: Grid, dataset: str, column: tuple[str, str]) -> tuple[str, str]:
    """Returns the options and the tuned part of a method without laws, for two table columns."""
    entries = [
        entry
        for (name, _, *place), entry in grid.entries.items()
        if name == dataset and tuple(place) == column
    ]
    if not any(entry.network for entry in entries):
        return "linear head", "stored features"
    unpriced = any(entry.unpriced for entry in entries)
    return SETTINGS["searched"] if unpriced else "network", "laws not measured"


def _result_row(
    backbone: str,
    method: str,
    words: tuple[str, str],
    grid: Grid,
    dataset: str,
    epsilons: Sequence[float],
) -> tuple[TableCell, ...]:
    cells = [grid.get((dataset, each), (backbone, method)) for each in epsilons]
    return make_row(backbone, method, *words, *map(_result_cell, cells))


def _result_cell(entry: Entry | None) -> TableCell:
    return BLANK if entry is None else mean_cell(entry.mean, entry.low, entry.high, scale=1)


def _epsilon_title(epsilon: float) -> str:
    return f"ε = {'∞' if epsilon == float('inf') else budget_words(epsilon)}"


def shown_epsilon(token: str | None) -> str:
    return "" if token is None else "∞" if token == INFINITE else budget_words(token)


def sort_networks(networks: Iterable[NetworkLaws]) -> list[NetworkLaws]:
    """Sorts networks: the frozen network first, then by setting, epsilon and tuned blocks."""
    settings = list(SETTINGS)

    def sort_key(network: NetworkLaws) -> tuple[int, float, bool, int, str]:
        return (
            settings.index(network.setting),
            0.0 if network.epsilon is None else budget_order(network.epsilon),
            network.blocks is None,
            network.blocks or 0,
            network.method or "",
        )

    return sorted(networks, key=sort_key)
