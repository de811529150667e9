"""The tables of the papers, their published numbers beside what a study measured.

Table 2 and table 3 of the foundation-features paper; tables 1 to 4, 8 and 9 of Mehta et al. 2022;
the headline of Mehta et al. 2023. Published numbers come from `resources/published.yaml`, measured
ones from the cells of one study, whatever it ran. What was not run is blank, and a note says how to
run it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dpprobe.artifacts import write_text
from dpprobe.reporting.published import TABLES, Number, PrintedTable, Published, Row, bibliography
from dpprobe.reporting.tables import BLANK, EXTENSIONS, Column, Entry, Sheet, measured, write_sheet
from dpprobe.results.best_private import best_ceiling
from dpprobe.results.cell_results import Measured, difference
from dpprobe.study.ablations import best_base, changes, families, unique

FOUNDATION, TRANSFER, FEATURES = "foundation_features", "mehta_2022", "mehta_2023"
STUDY_FILES = {
    FOUNDATION: "config/foundation_features.yaml",
    TRANSFER: "config/large_scale_transfer.yaml",
    FEATURES: "config/features_second_order.yaml",
}
FILES = (*(f"{name}.{extension}" for name in TABLES for extension in EXTENSIONS), "references.bib")
TITLES = {
    "mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100", "plantdisease": "PlantDisease", "eurosat": "EuroSAT",
    "chest_xray": "Chest X-Ray", "imagenet": "ImageNet",
}  # fmt: skip
HEADS = {"sgd": "SGD", "momentum": "momentum", "adam": "Adam", "lamb": "LAMB"}
SECOND_ORDER = ("least_squares", "newton", "feature_covariance")
DEFAULT_SHOTS = (1, 2, 4, 8, 16, 32, None)
OURS = "dpprobe"
INFINITY = "∞"
NAMED = 3  # columns that a note names; more are counted
RATE_NOTE = (
    "What is compared: the published rates are images a second on one TPUv4 core, each visit a "
    "pass through the whole network (images are augmented); the measured ones are rows a second of "
    "the training job on this machine, all seeds together, from features that were extracted once. "
    "Extraction is not in them."
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a study gives to the tables.

    Attributes:
      study: the study's name.
      cells: all that it ran.
      names: of a dataset of the study, its name in `resources/published.yaml`.
      backbones: the options of each backbone.
      methods: those whose cells stand in table 2; all private ones where empty.
      base: the method whose options table 4 changes one at a time; found where None.
      zero_shot, few_shot: the records of `dpprobe.zero_shot` and `dpprobe.few_shot`.
    """

    study: str
    cells: Sequence[Measured]
    names: Mapping[str, str]
    backbones: Mapping[str, Mapping[str, Any]]
    methods: Sequence[str] = ()
    base: str | None = None
    zero_shot: Sequence[Mapping[str, Any]] = ()
    few_shot: Sequence[Mapping[str, Any]] = ()

    @property
    def source(self) -> str:
        """What the tables write where a row is measured."""
        return f"{OURS}, {self.study}"

    @property
    def datasets(self) -> list[str]:
        return unique(cell.dataset for cell in self.cells)

    def published_name(self, dataset: str) -> str:
        return self.names.get(dataset, dataset)

    def title(self, dataset: str) -> str:
        """A dataset of the study as tables write it: with its own name where it is another."""
        name = self.published_name(dataset)
        title = TITLES.get(name, name)
        return title if dataset == name else f"{title} ({dataset})"


def write_paper_tables(run: Run, published: Published, folder: Path) -> None:
    """Writes every table as Markdown, CSV and LaTeX, and the bibliography that LaTeX cites."""
    for sheet in paper_tables(run, published):
        write_sheet(sheet, folder)
    write_text(folder / "references.bib", bibliography(published))


def paper_tables(run: Run, published: Published) -> list[Sheet]:
    """All tables, in the order of `TABLES`."""
    batches = [_batch_table(run, published, number) for number in ("1", "2")]
    return [
        _literature(run, published),
        _shots(run, published),
        *batches,
        _model_sizes(run, published),
        _ablation(run, published),
        _throughput(run, published),
        _batch_table(run, published, "9"),
        _headline(run, published),
    ]


# Table 2 of the foundation-features paper.

_Place = tuple[str, float, str]  # dataset, epsilon and metric as a row writes it


def _literature(run: Run, published: Published) -> Sheet:
    """Datasets by epsilon and source: published columns, then a column a backbone + method."""
    printed = published.of_table(FOUNDATION, "2")
    table = _Literature(run, published, printed)
    rows = []
    missing: dict[str, list[str]] = {}
    for name in unique([*(row.dataset for row in printed.rows if row.dataset), *_extra(run)]):
        of_dataset = [row for row in printed.rows if row.dataset == name]
        rows += table.rows(name, of_dataset)
        if blank := table.blank(name, of_dataset):
            missing[name] = blank
    own = [f"±{' + '.join(column)}" for column in table.columns]
    cited = {key: citation.short for key, citation in published.citations.items()}
    notes = [
        "Accuracy in percent, AUC as a fraction. Published columns as printed: CNN is the row's "
        f"source, SN+LC and SN+CNN are {cited['tramer_boneh_2021']}, the next three the "
        f"{cited[FOUNDATION]}, which prints them once a dataset. Measured: mean over seeds ± half "
        f"of the 95 % interval{_deltas(table.cells)}, in the published row of the same epsilon and "
        "metric, else in a row of their own."
    ]
    if missing:
        notes.append(_missing(run, missing))
    return _sheet(
        TABLES[0],
        "Private accuracy or AUC beside published results (table 2 of the foundation-features "
        "paper)",
        ("<Data", "<Metric", "ε", "<Source", *(c.title for c in printed.columns.values()), *own),
        rows,
        notes,
    )


class _Literature:
    """Rows of table 2.

    Attributes:
      cells: the measured cells that stand in it.
      columns: (backbone, method) of each.
    """

    def __init__(self, run: Run, published: Published, printed: PrintedTable) -> None:
        self._run, self._published, self._printed = run, published, printed
        self.cells = [
            cell
            for cell in run.cells
            if cell.private and (not run.methods or cell.method in run.methods)
        ]
        self.columns = unique((cell.backbone, cell.method) for cell in self.cells)
        self._found = {(*_place(c), c.backbone, c.method): c for c in self.cells}

    def rows(self, name: str, printed: Sequence[Row]) -> list[tuple[Entry, ...]]:
        """A dataset's published rows, measured cells in the first of their place; then others."""
        own = _datasets_of(self._run, name)
        rows = []
        taken: set[_Place] = set()
        for row in printed:
            numbers = self._numbers(row)
            first = next(iter(numbers.values()))
            place = self._place_of(own, first)
            entries = [BLANK] * len(self.columns) if place in taken else self._measured(place)
            taken.add(place)
            source = _source(self._published, row.citation or self._printed.paper)
            rows.append(
                _row(
                    TITLES.get(name, name), _metric(first.metric), _epsilon(first.epsilon), source,
                    *(_printed(numbers.get(key)) for key in self._printed.columns), *entries,
                )
            )  # fmt: skip
        return rows + [row for dataset in own for row in self._own_rows(dataset, taken)]

    def blank(self, name: str, printed: Sequence[Row]) -> list[str]:
        """The epsilons of published rows with blank measured columns, and which these are."""
        own = _datasets_of(self._run, name)
        places = unique(
            self._place_of(own, number)
            for row in printed
            for number in self._numbers(row).values()
            if number.single_epsilon is not None
        )
        found = []
        for place in places:
            left = [" + ".join(c) for c in self.columns if (*place, *c) not in self._found]
            if len(left) == len(self.columns):
                found.append(f"{place[1]:g}")
            elif left:
                which = ", ".join(left) if len(left) <= NAMED else f"{len(left)} columns"
                found.append(f"{place[1]:g} ({which})")
        return found

    def _place_of(self, own: Sequence[str], number: Number) -> _Place:
        """Where measured cells stand beside a number: of several datasets the first with one."""
        rest = number.single_epsilon or 0.0, _metric(number.metric)
        measured = (d for d in own if any((d, *rest, *c) in self._found for c in self.columns))
        return next(measured, own[0] if own else ""), *rest

    def _own_rows(self, dataset: str, taken: Container[_Place]) -> list[tuple[Entry, ...]]:
        places = {_place(cell) for cell in self.cells if cell.dataset == dataset}
        return [
            _row(
                self._run.title(dataset), place[2], _epsilon(place[1]), self._run.source,
                *[BLANK] * len(self._printed.columns), *self._measured(place),
            )
            for place in sorted(places)
            if place not in taken
        ]  # fmt: skip

    def _numbers(self, row: Row) -> dict[str, Number]:
        table = self._printed
        found = self._published.select(paper=table.paper, table=table.table, row=row.row)
        return {number.column: number for number in found}

    def _measured(self, place: _Place) -> list[Entry]:
        return [_shown(self._found.get((*place, *column))) for column in self.columns]


def _place(cell: Measured) -> _Place:
    return cell.dataset, cell.epsilon, _metric(cell.measure.headline)


def _datasets_of(run: Run, name: str) -> list[str]:
    """The study's datasets that stand for a published one; its namesake first."""
    own = [dataset for dataset in run.datasets if run.published_name(dataset) == name]
    return sorted(own, key=lambda dataset: dataset != name)


def _extra(run: Run) -> list[str]:
    return [run.published_name(dataset) for dataset in run.datasets]


def _missing(run: Run, missing: Mapping[str, Sequence[str]]) -> str:
    """Which measured cells are blank, and the command that runs them."""
    cells = "; ".join(
        f"{TITLES.get(name, name)} at ε {', '.join(epsilons)}" for name, epsilons in missing.items()
    )
    return (
        f"Not run in study {run.study}, so blank: {cells}. {_command(FOUNDATION)} runs the paper's "
        "datasets; an epsilon that is not in a study is written under its `epsilons:`."
    )


# Table 3: shots.


def _shots(run: Run, published: Published) -> Sheet:
    """Few-shot linear probes and zero-shot, not private, beside private heads of the backbone."""
    counts = {probe["shots"] for record in run.few_shot for probe in record["results"]}
    shots = sorted(counts or DEFAULT_SHOTS, key=lambda count: count or math.inf)
    budgets = sorted({cell.epsilon for cell in run.cells if cell.private})
    budgets = unique([budgets[0], budgets[-1]]) if budgets else []
    zero = {(r["dataset"], r["backbone"]): r for r in run.zero_shot}
    few = {(r["dataset"], r["backbone"]): r for r in run.few_shot}
    rows = []
    for dataset, backbone in unique([*zero, *few]):
        own = [c for c in run.cells if (c.dataset, c.backbone) == (dataset, backbone)]
        best = [_best(c for c in own if c.private and c.epsilon == budget) for budget in budgets]
        records = zero.get((dataset, backbone)), few.get((dataset, backbone))
        metrics = unique(
            [
                *(cell.measure.headline for cell in own),
                *(record["headline"] for record in reversed(records) if record),
            ]
        )
        probes = {probe["shots"]: probe for probe in records[1]["results"]} if records[1] else {}
        rows.append(
            _row(
                run.title(dataset), " or ".join(map(_metric, metrics)), backbone,
                _summarised(records[0], records[0]["headline"]) if records[0] else BLANK,
                *(
                    _summarised(probes.get(count), records[1]["headline"]) if records[1] else BLANK
                    for count in shots
                ),
                *(_shown(cell) for cell in best),
                ", ".join(unique(cell.method for cell in best if cell)),
                _own_published(published, run.published_name(dataset)),
            )
        )  # fmt: skip
    notes = [
        "Zero-shot and N examples a class (a linear probe on the same features): not private. DP: "
        "the best method of the study at that epsilon, chosen by its test result. The paper's own "
        "N-shot numbers could not be read and are not here; its private ones are of CLIP+LC. Two "
        "metrics: accuracy is in percent, AUC a fraction; zero-shot is AUC where a row has several "
        "labels and the model no threshold."
    ]
    if not rows:
        notes.append(
            "No backbone of this study reads text, and no few-shot probe was asked for: "
            f"{_command(FOUNDATION)} runs both."
        )
    elif any(BLANK in row[3:-2] for row in rows):
        notes.append(
            "Blank: not run. N-shot probes come with a `few_shot:` block in the study, zero-shot "
            "with a backbone that reads text, DP with a private method; "
            f"{_command(FOUNDATION)} runs all three."
        )
    return _sheet(
        TABLES[1],
        "N-shot classifiers against private ones (table 3 of the foundation-features paper)",
        (
            "<Data", "<Metric", "<Backbone", "±Zero-shot",
            *(f"±{'Full' if count is None else f'{count}-shot'}" for count in shots),
            *(f"±DP, ε {value:g}" for value in budgets), "<DP method", "DP, published (ε)",
        ),
        rows,
        notes,
    )  # fmt: skip


def _own_published(published: Published, name: str) -> Entry:
    numbers = published.select(table="2", column="clip_lc", dataset=name)
    if not numbers:
        return BLANK
    return Entry(text=f"{numbers[0].text} ({_epsilon(numbers[0].epsilon).text})")


# Tables 1, 2, 3 and 9 of Mehta et al. 2022.


@dataclass(kw_only=True)
class _BatchRow:
    """One model at one epsilon: an entry a batch size."""

    dataset: str
    model: str
    tuning: str
    source: Entry
    epsilon: Any
    best: Entry = BLANK
    entries: dict[int, Entry] = field(default_factory=dict)
    dimension: int | None = None
    chosen: bool = False  # whether an entry is the best of several


def _batch_table(run: Run, published: Published, table: str) -> Sheet:
    """One optimiser: a row a model and epsilon, a column a batch size."""
    printed = published.of_table(TRANSFER, table)
    assert printed.optimiser is not None
    rows = [*_printed_batches(published, table), *_measured_batches(run, printed.optimiser)]
    if table == "9":
        for row in rows:
            row.entries = {size: entry for size, entry in row.entries.items() if size < 2**17}
        rows = [row for row in rows if row.entries]
    sizes = sorted({size for row in rows for size in row.entries})
    best = any(row.best.text for row in rows)
    body = [
        _row(
            row.dataset, row.model, row.tuning, row.source, _epsilon(row.epsilon),
            *([row.best] if best else []), *(row.entries.get(size, BLANK) for size in sizes),
        )
        for row in rows
    ]  # fmt: skip
    notes = [
        "Test accuracy in percent (AUC as a fraction where that is the dataset's metric) by "
        "expected batch size; ∞ is without privacy. Published: δ 1e-6, fixed-size batches, top-1. "
        "Measured: Poisson batches, frozen features, mean over seeds ± half of the 95 % interval"
        f"{_deltas(run.cells)}. Blank: not run at that batch size."
    ]
    measured_rows = [row for row in rows if not row.source.citation]
    if any(size not in row.entries for row in measured_rows for size in sizes):
        notes.append(
            "A measured row has the batch sizes of its methods' `batch_size:`; "
            f"{_command(TRANSFER)} runs a sweep."
        )
    if best:
        notes[0] += (
            " Best, published: momentum, batch size 512, without privacy; measured: logistic "
            "regression to convergence."
        )
    notes += _chosen(rows)
    if all(row.source.citation for row in rows):
        small = " and batches below 2^17" if table == "9" else ""
        notes.append(_none(run, f"no method with head {printed.optimiser}{small}"))
    return _sheet(
        f"large_scale_transfer_table{table}",
        f"{printed.title} (table {table} of Mehta et al. 2022)",
        (
            "<Data", "<Model", "<Tuning", "<Source", "ε", *(["±Best"] if best else []),
            *(f"±{_size(size)}" for size in sizes),
        ),
        body,
        notes,
    )  # fmt: skip


def _printed_batches(published: Published, table: str) -> list[_BatchRow]:
    rows: dict[tuple[str, Any], _BatchRow] = {}
    for number in published.select(paper=TRANSFER, table=table):
        assert number.model is not None
        assert number.tuning is not None
        assert number.batch_size is not None
        assert number.dataset is not None
        row = rows.setdefault(
            (number.row, number.epsilon),
            _BatchRow(
                dataset=TITLES[number.dataset],
                model=number.model,
                tuning=number.tuning,
                source=_source(published, number.citation),
                epsilon=number.epsilon,
            ),
        )
        if number.column == "best":
            row.best = _printed(number)
        else:
            row.entries[number.batch_size] = _printed(number)
    return list(rows.values())


def _measured_batches(run: Run, head: str) -> list[_BatchRow]:
    """Methods of one head that differ in batch size and learning rate share a row.

    Methods of one batch size stand here only where no others do: they are about something else.
    """
    own = {cell.method: cell.options for cell in run.cells if cell.head == head}
    groups = families(own, ("batch_size", "learning_rate"))
    groups = [group for group in groups if len(group) > 1] or groups
    rows = []
    for group in groups:
        cells = [cell for cell in run.cells if cell.method in group]
        keys = unique((c.dataset, c.backbone, c.epsilon) for c in cells)
        for dataset, backbone, epsilon in sorted(keys, key=lambda key: (key[0], key[1], -key[2])):
            same = [
                c
                for c in cells
                if (c.dataset, c.backbone, c.epsilon) == (dataset, backbone, epsilon)
            ]
            sizes = _by_batch_size(same)
            rows.append(
                _BatchRow(
                    dataset=run.title(dataset),
                    model=backbone,
                    tuning="last layer",
                    source=Entry(text=f"{OURS}, {_group_name(group)}"),
                    epsilon=epsilon,
                    best=_ceiling(run, dataset, backbone) if math.isinf(epsilon) else BLANK,
                    entries={size: _shown(_best(cells)) for size, cells in sizes.items()},
                    dimension=same[0].dimension,
                    chosen=any(len(cells) > 1 for cells in sizes.values()),
                )
            )
    return rows


def _by_batch_size(cells: Sequence[Measured]) -> dict[int, list[Measured]]:
    found: dict[int, list[Measured]] = {}
    for cell in cells:
        if cell.batch_size:
            found.setdefault(cell.batch_size, []).append(cell)
    return found


def _chosen(rows: Iterable[_BatchRow]) -> list[str]:
    """A note where methods share a batch size, as those of a sweep of learning rates do."""
    if not any(row.chosen for row in rows):
        return []
    return [
        "Measured, where several methods of a row have one batch size: the best of several by its "
        "test result, at each ε on its own."
    ]


def _group_name(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else f"{group[0]} … {group[-1]}"


def _ceiling(run: Run, dataset: str, backbone: str) -> Entry:
    own = (cell for cell in run.cells if (cell.dataset, cell.backbone) == (dataset, backbone))
    return _shown(best_ceiling(own))


def _size(size: int) -> str:
    exponent = round(math.log2(size))
    return f"2^{exponent}" if 2**exponent == size else f"{size:,}"


def _model_sizes(run: Run, published: Published) -> Sheet:
    """Table 3: the largest batch of DP-LAMB, a row a model, without and with privacy."""
    rows = []
    for row in published.of_table(TRANSFER, "3").rows:
        numbers = {n.column: n for n in published.select(paper=TRANSFER, table="3", row=row.row)}
        one = numbers["dp_20"]
        rows.append(
            _row(
                TITLES["imagenet"], one.model or "", BLANK, one.tuning or "",
                _source(published, one.citation), _printed(numbers["best"]), _size(2**20),
                _printed(numbers["inf_20"]), _epsilon(one.epsilon), _printed(one),
            )
        )  # fmt: skip
    measured_rows = _measured_batches(run, "lamb")
    ours = _largest_batches(measured_rows)
    notes = [
        "Test accuracy in percent (AUC as a fraction) at the largest batch of DP-LAMB; Best as in "
        "table 2. The published models were trained on JFT, which is not public."
    ]
    notes += _chosen(measured_rows)
    if not ours:
        notes.append(_none(run, "no method with head lamb"))
    return _sheet(
        "large_scale_transfer_table3",
        "DP-LAMB by model size (table 3 of Mehta et al. 2022)",
        (
            "<Data", "<Model", "Features", "<Tuning", "<Source", "±Best, ε ∞", "Batch", "±ε ∞", "ε",
            "±Private",
        ),
        [*rows, *ours],
        notes,
    )  # fmt: skip


def _largest_batches(batches: Sequence[_BatchRow]) -> list[tuple[Entry, ...]]:
    groups: dict[tuple[str, str, str], list[_BatchRow]] = {}
    for found in batches:
        groups.setdefault((found.dataset, found.model, found.source.text), []).append(found)
    rows = []
    for (dataset, model, source), group in groups.items():
        size = max(size for found in group for size in found.entries)
        same = {found.epsilon: found for found in group if size in found.entries}
        free = same.pop(math.inf, None)
        for epsilon, found in sorted(same.items()):
            rows.append(
                _row(
                    dataset, model, Entry(text=str(found.dimension), value=found.dimension),
                    "last layer", source, free.best if free else BLANK, _size(size),
                    free.entries[size] if free else BLANK, _epsilon(epsilon), found.entries[size],
                )
            )  # fmt: skip
    return rows


# Table 4.


def _ablation(run: Run, published: Published) -> Sheet:
    """One change at a time, with its difference to the base."""
    rows = []
    for row in published.of_table(TRANSFER, "4").rows:
        numbers = {n.column: n for n in published.select(paper=TRANSFER, table="4", row=row.row)}
        one = numbers["accuracy"]
        rows.append(
            _row(
                TITLES["imagenet"], one.model or "", _epsilon(one.epsilon), row.row,
                _source(published, one.citation), _printed(one), _printed(numbers["change"]),
            )
        )  # fmt: skip
    gradient = {c.method: c.options for c in run.cells if c.head in HEADS}
    base = run.base or best_base(gradient)
    ours = [] if base is None else _changed_rows(run, base)
    notes = [
        "Accuracy in percent (AUC as a fraction); a difference is to the row above it in which "
        "nothing changes. Published differences as printed, rounded on their own; measured ones ± "
        "half of the 95 % interval of the difference (Welch's t), where seeds vary."
    ]
    if ours:
        notes.append(
            f"Measured: methods of study {run.study} whose options differ from those of {base} in "
            "one, and backbones whose options differ from the first one's in one. Another "
            "optimiser comes with its own learning rate."
        )
    else:
        notes.append(_none(run, "no two gradient methods that differ in one option"))
    return _sheet(
        "large_scale_transfer_table4",
        "One change at a time (table 4 of Mehta et al. 2022)",
        ("<Data", "<Model", "ε", "<Change", "<Source", "±Accuracy", "±Difference"),
        [*rows, *ours],
        notes,
    )


def _changed_rows(run: Run, base: str) -> list[tuple[Entry, ...]]:
    """For each private cell of the base method: itself, then the cells one change away.

    Of several backbones the first is the base.
    """
    rows = []
    cells = [cell for cell in run.cells if cell.method == base and cell.private]
    backbone = next((name for name in run.backbones if any(c.backbone == name for c in cells)), "")
    for first in (cell for cell in cells if cell.backbone == backbone):
        same = _one_change_away(run, first)
        for change, cell in [("no change", first), *same] if same else []:
            gap = BLANK if cell is first else _gap(first, cell)
            rows.append(
                _row(
                    run.title(cell.dataset), first.backbone, _epsilon(cell.epsilon), change,
                    f"{OURS}, {cell.method}", _shown(cell), gap,
                )
            )  # fmt: skip
    return rows


def _one_change_away(run: Run, first: Measured) -> list[tuple[str, Measured]]:
    """Cells with another option of the method, or of the backbone, and what it is."""
    found = []
    for other in run.cells:
        if (other.dataset, other.epsilon) != (first.dataset, first.epsilon) or not other.private:
            continue
        if other.backbone == first.backbone:
            changed = changes(first.options, other.options)
        elif other.method == first.method:
            changed = _deep_changes(run.backbones[first.backbone], run.backbones[other.backbone])
        else:
            continue
        if len(changed) == 1:
            found.append((_described(changed), other))
    return found


def _gap(first: Measured, other: Measured) -> Entry:
    gap, half = difference(first.values, other.values)
    scale, digits = (1.0, 3) if first.measure.headline == "auc" else (100.0, 1)
    entry = measured(gap, half, scale=scale, digits=digits)
    return replace(entry, text=entry.text if gap < 0 else f"+{entry.text}")


def _deep_changes(base: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return changes(_flat(base), _flat(other))


def _flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by dotted names."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _described(found: Mapping[str, tuple[Any, Any]]) -> str:
    parts = []
    for key, (before, after) in found.items():
        if key == "head":
            parts.append(f"{HEADS.get(before, before)} → {HEADS.get(after, after)}")
        else:
            name = key.replace("_", " ").replace(".", " ")
            parts.append(f"{name} {_brief(before)} → {_brief(after)}")
    return ", ".join(parts)


def _brief(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return str(value.get("kind", value))
    return str(value)


# Table 8.


def _throughput(run: Run, published: Published) -> Sheet:
    """Full fine-tuning against the last layer, beside rows a second of measured heads."""
    rows = []
    for row in published.of_table(TRANSFER, "8").rows:
        numbers = {n.column: n for n in published.select(paper=TRANSFER, table="8", row=row.row)}
        ratio = numbers["speed_up"]
        rows.append(
            _row(
                row.row, _source(published, ratio.citation), "DP-LAMB", _printed(numbers["full"]),
                _printed(numbers["last"]), Entry(text=f"{ratio.text}×", value=ratio.value), BLANK,
                BLANK,
            )
        )  # fmt: skip
    ours = _rates(run)
    notes = [
        RATE_NOTE,
        "The measured rate is the median over a method's private cells of seeds × steps × batch "
        "size by the seconds of fitting, with what is recorded on the way, to two digits. Full "
        "fine-tuning is not part of this project: its measured column stays blank.",
    ]
    if not ours:
        notes.append(_none(run, "no private gradient head"))
    return _sheet(
        "large_scale_transfer_table8",
        "Throughput, full fine-tuning against the last layer (table 8 of Mehta et al. 2022)",
        (
            "<Model", "<Source", "<Method", "Full, images/s/core", "Last layer, images/s/core",
            "Speed-up", "Features", "Last layer, rows/s of a job",
        ),
        [*rows, *ours],
        notes,
    )  # fmt: skip


def _rates(run: Run) -> list[tuple[Entry, ...]]:
    rates: dict[tuple[str, str, int], list[float]] = {}
    for cell in run.cells:
        visited = cell.visited_rows if cell.private and cell.seconds else None
        if cell.seconds and visited:
            own = rates.setdefault((cell.backbone, cell.method, cell.dimension), [])
            own.append(visited / cell.seconds)
    rows = []
    for (backbone, method, dimension), own in rates.items():
        middle = float(f"{sorted(own)[len(own) // 2]:.2g}")
        rows.append(
            _row(
                backbone, run.source, method, BLANK, BLANK, BLANK,
                Entry(text=str(dimension), value=dimension),
                Entry(text=f"{middle:,.0f}", value=middle),
            )
        )  # fmt: skip
    return rows


# Mehta et al. 2023.


def _headline(run: Run, published: Published) -> Sheet:
    """DP-FC as published, and the second-order heads of the study."""
    private = [cell for cell in run.cells if cell.private and cell.head in SECOND_ORDER]
    rows = [
        _row(
            TITLES[number.dataset or ""], _epsilon(number.epsilon),
            _source(published, number.citation), "strongest private", BLANK, BLANK,
            _printed(number),
        )
        for number in published.select(paper=FEATURES)
    ]  # fmt: skip
    keys = unique((cell.dataset, cell.backbone, cell.epsilon) for cell in private)
    for key in keys:
        same = [c for c in private if (c.dataset, c.backbone, c.epsilon) == key]
        best = [_best(c for c in same if c.head == head) for head in SECOND_ORDER]
        dataset, backbone, epsilon = key
        rows.append(
            _row(
                run.title(dataset), _epsilon(epsilon), run.source, backbone,
                *(_shown(cell) for cell in best),
            )
        )  # fmt: skip
    notes = [
        "Accuracy in percent, or AUC as a fraction where that is the dataset's metric. Published: "
        "δ 8e-7. Measured: mean over seeds ± half of the 95 % interval"
        f"{_deltas(private)}; of several methods with one head the best, chosen by its test "
        "result. Blank: not run."
    ]
    if not private or any(BLANK in row for row in rows[-len(keys) :]):
        notes.append(f"{_command(FEATURES)} runs these heads.")
    return _sheet(
        TABLES[-1],
        "Second-order heads (headline results of Mehta et al. 2023)",
        ("<Data", "ε", "<Source", "<Backbone", *(f"±{head}" for head in SECOND_ORDER)),
        rows,
        notes,
    )


# What the tables share.


def _sheet(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: list[tuple[Entry, ...]],
    notes: list[str],
) -> Sheet:
    """A sheet whose columns are named "<left", "±with an interval" or "right"."""
    return Sheet(
        name=name,
        title=title,
        columns=tuple(
            Column(
                title=column.lstrip("<±"),
                align="left" if column.startswith("<") else "right",
                interval=column.startswith("±"),
            )
            for column in columns
        ),
        rows=rows,
        notes=notes,
    )


def _row(*entries: Entry | str) -> tuple[Entry, ...]:
    return tuple(Entry(text=entry) if isinstance(entry, str) else entry for entry in entries)


def _command(paper: str) -> str:
    return f"`snakemake --cores all paper_tables --configfile {STUDY_FILES[paper]}`"


def _none(run: Run, what: str) -> str:
    return (
        f"Study {run.study} has {what}, so nothing measured stands here; {_command(TRANSFER)} "
        "runs some."
    )


def _source(published: Published, citation: str) -> Entry:
    return Entry(text=published.citations[citation].short, citation=citation)


def _best(cells: Iterable[Measured]) -> Measured | None:
    return max(cells, key=lambda cell: cell.mean, default=None)


def _printed(number: Number | None) -> Entry:
    if number is None:
        return BLANK
    value = None if math.isnan(number.value) else number.value
    return Entry(text=number.text, value=value)


def _shown(cell: Measured | None) -> Entry:
    if cell is None:
        return BLANK
    half = None if cell.low is None or cell.high is None else (cell.high - cell.low) / 2
    return _scaled(cell.mean, half, cell.measure.headline)


def _summarised(record: Mapping[str, Any] | None, metric: str) -> Entry:
    """The metric of a zero-shot record, or of one probe of a few-shot record."""
    if record is None:
        return BLANK
    entry = record["summary"][metric]
    half = None if entry["low"] is None else (entry["high"] - entry["low"]) / 2
    return _scaled(entry["mean"], half, metric)


def _scaled(mean: float, half: float | None, metric: str) -> Entry:
    """Accuracy in percent, AUC as the fraction that the papers print."""
    if metric == "auc":
        return measured(mean, half, scale=1.0, digits=3)
    return measured(mean, half)


def _metric(name: str) -> str:
    return "AUC" if name == "auc" else "accuracy"


def _epsilon(value: Any) -> Entry:
    if isinstance(value, tuple):
        return Entry(text=f"[{value[0]:g}, {value[1]:g}]")
    if math.isinf(value):
        return Entry(text=INFINITY)
    return Entry(text=f"{value:g}", value=value)


def _deltas(cells: Iterable[Measured]) -> str:
    """ ", δ 1e-05" for a note; nothing where the cells have none."""
    found = unique(cell.delta for cell in cells if cell.delta is not None)
    return f", δ {' or '.join(f'{value:g}' for value in found)}" if found else ""
