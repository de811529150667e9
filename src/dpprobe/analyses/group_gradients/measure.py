"""The job that measures subgroups' gradients of a linear head's loss, at the trained weights.

Not private: computed from training examples without noise, so no result may be published.

The loss of a row x with constant b and residuals r has the gradient r [x, b] in the trained
parameters, of norm |r| |[x, b]|. So norms and sums follow from residuals and rows in closed form;
clipping uses `dpprobe.heads.clipping`. Sums weight rows as training does: by 1 / m for a patient
with m rows, and by the class's weight. Cosines of sums equal cosines of means.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file

from dpprobe.analyses.fairness.fairness_record import Group, Minimum
from dpprobe.analyses.fairness.groupings import Grouping, TestRows, make_groupings
from dpprobe.analyses.group_gradients import explain_skip
from dpprobe.analyses.group_gradients.gradients_record import (
    ALL,
    GradientsCell,
    GradientsRecord,
    GroupedRows,
    GroupGradients,
    Spread,
)
from dpprobe.analyses.group_gradients.options import GroupGradientsOptions
from dpprobe.devices import limit_threads, use_full_float32
from dpprobe.errors import DataError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.balance import weigh_classes
from dpprobe.heads.balance_options import BalanceOptions
from dpprobe.heads.clipped_row_options import RowOptions
from dpprobe.heads.clipping import clip_bounds, clipped_residuals
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Rows
from dpprobe.heads.scoring import compute_scores
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.risk import find_risk
from dpprobe.progress import Progress
from dpprobe.results.cell_files import WEIGHTS_FILE
from dpprobe.results.cell_record import CellRecord, check_file, read_cell
from dpprobe.results.unit_counts import unit_codes
from dpprobe.training.fit_inputs import FitInputs, read_labels

Index = npt.NDArray[np.int64]
# Memory for the groups' sums; each pass over the rows adds as many groups as fit.
SUM_BYTES = 2**28


def measure_group_gradients(
    metrics: Sequence[Path],
    train: Path,
    record: Path,
    *,
    options: GroupGradientsOptions,
    skipped: Mapping[str, str],
    memory_mb: int,
    dataset: str,
    backbone: str,
    threads: int,
) -> None:
    """Measures the gradients of groups in all cells of a (dataset, backbone).

    Args:
      metrics: the path of metrics.json of each cell, in the folder of the cell's weights.
      skipped: the methods that have no such gradients, with reasons.
      memory_mb: the limit above which features are streamed from disk.

    Raises:
      DataError: if a cell belongs to other features, no row is usable, or rows lack the groups.
    """
    limit_threads(threads)
    # Null examples are included, because they count in the weights of their patient's rows.
    store = FeatureStore(train)
    cells = [(read_cell(path), check_file(path.with_name(WEIGHTS_FILE))) for path in metrics]
    for cell, path in cells:
        if (cell.dimension, tuple(cell.class_names)) != (store.dimension, store.class_names):
            raise DataError(
                f"{path}: its head has dimension {cell.dimension} and {len(cell.class_names)} "
                f"classes, but {train} has {store.dimension} and {store.num_classes}; run the "
                "study again"
            )
    inputs = FitInputs(store, cells[0][0].unit)
    data = inputs.read_rows(device="cpu", memory_mb=memory_mb)
    grouped = GroupedExamples.group_rows(store, data, options)
    reasons, measured = dict(skipped), []
    with (
        torch.inference_mode(),
        use_full_float32(),
        Progress(len(cells), label=f"gradients of {dataset}, {backbone}", unit="cells") as progress,
    ):
        for cell, path in cells:
            method = method_options(cell.options)
            if reason := explain_skip(method):  # known only now for a head that `auto` chose
                reasons[cell.cell.method] = reason
            else:
                measured.append(_measure_cell(cell, path, method.trained_head, data, grouped))
            progress.advance_by(1)
    GradientsRecord(
        dataset=dataset,
        backbone=backbone,
        rows=len(grouped.usable),
        unusable=store.rows - len(grouped.usable),
        minimum=options.minimum,
        attributes=grouped.attributes,
        cells=tuple(measured),
        skipped=reasons,
    ).write(record)


@dataclass(frozen=True)
class GroupedExamples:
    """The usable training examples, and the measured groups.

    Attributes:
      usable: the rows with usable features, in ascending order.
      members: the ascending rows of each measured group by (attribute, group); first all rows.
    """

    usable: Index
    members: Mapping[tuple[str, str], Index]
    attributes: tuple[GroupedRows, ...]

    @classmethod
    def group_rows(
        cls, store: FeatureStore, data: TrainingSet, options: GroupGradientsOptions
    ) -> GroupedExamples:
        usable = np.flatnonzero(data.lengths.isfinite().numpy())
        if not len(usable):
            raise DataError(f"{store.path}: no training row has finite features; extract it again")
        labels = read_labels(store)[usable]
        names = store.units
        units = None if names is None else unit_codes([names[row] for row in usable])
        rows = TestRows(
            labels=labels.astype(bool) if store.multi_label else labels,
            class_names=store.class_names,
            units=np.arange(len(usable)) if units is None else units,
            named_units=units is not None,
            groups={name: [of[row] for row in usable] for name, of in store.groups.items()},
        )
        minimum = Minimum(units=options.minimum, positives=options.minimum, negatives=0)
        groupings = make_groupings(rows, groups=options.groups, pairs=(), minimum=minimum)
        members, attributes = {(ALL, ALL): usable}, []
        for grouping in groupings:
            of_group = _list_members(grouping, rows)
            members |= {
                (grouping.attribute, name): usable[mine]
                for name, mine in of_group.items()
                if name not in grouping.left_out
            }
            described = (
                Group(
                    group=name,
                    rows=len(mine),
                    units=len(np.unique(rows.units[mine])),
                    left_out=grouping.left_out.get(name),
                )
                for name, mine in of_group.items()
            )
            attributes.append(GroupedRows(attribute=grouping.attribute, groups=tuple(described)))
        return cls(usable, members, tuple(attributes))


def _list_members(grouping: Grouping, rows: TestRows) -> dict[str, Index]:
    """Returns the rows of each group; codes without a name belong to the blank group, the last."""
    if grouping.by_label:
        return {name: np.flatnonzero(rows.rows_with(name)) for name in grouping.names}
    codes = np.where(grouping.codes < 0, len(grouping.names) - 1, grouping.codes)
    return {name: np.flatnonzero(codes == place) for place, name in enumerate(grouping.names)}


@dataclass(frozen=True)
class ExampleGradients:
    """The gradients of all rows' losses in the parameters of a head, never formed row by row.

    Attributes:
      weights: float32 [1, K, d + 1] for normalised rows, biases last.
      longest: the norm to which rows are clipped before training; infinite for no clipping.
      constant: b, appended to each row.
    """

    rows: Rows
    weights: torch.Tensor
    sigmoid: bool
    longest: float
    constant: float

    @classmethod
    def of_head(cls, head: MethodOptions, rows: Rows, weights: torch.Tensor) -> ExampleGradients:
        """Returns the gradients at the head of a method that `explain_skip` permits."""
        if isinstance(head, BalanceOptions) and head.class_weights:
            rows = weigh_classes(head, rows)
        longest, constant = math.inf, 1.0
        if isinstance(head, GradientOptions):
            constant = head.constant
        elif isinstance(head, RowOptions):
            longest, constant = head.max_row_norm, head.intercept * head.max_row_norm
        return cls(rows, weights, head.link == "sigmoid", longest, constant)

    @cached_property
    def norms(self) -> torch.Tensor:
        """Norms of clipped rows including the constant, float64 [n]; infinite for unusable rows."""
        return self.rows.lengths.clamp(max=self.longest).hypot(
            torch.where(self.rows.lengths.isfinite(), self.constant, math.inf)
        )

    def read_residuals(self, clip: float) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yields blocks: first row number, rows with constant [m, d + 1], residuals [m, K].

        Residuals are scaled so that gradients have norm at most `clip`.
        """
        bounds = clip_bounds(self.norms, clip)
        for start, stop, block in self.rows.read_blocks():
            lengths = self.rows.lengths[start:stop]
            if self.longest < math.inf:
                block = block * (self.longest / lengths).clamp(max=1).float()[:, None]
            logits = compute_scores(self.weights, block).transpose(0, 1)
            residuals = clipped_residuals(
                logits, self.rows.labels[start:stop], bounds[start:stop], sigmoid=self.sigmoid
            )
            given = torch.cat([block, block.new_full((len(block), 1), self.constant)], 1)
            yield start, given, residuals[:, 0]

    def compute_norms(self) -> npt.NDArray[np.float64]:
        """Returns the gradients' norms without clipping, float64 [n]; NaN for unusable rows."""
        found = [
            torch.linalg.vector_norm(residuals, dim=1, dtype=torch.float64)
            for _, _, residuals in self.read_residuals(math.inf)
        ]
        norms = torch.cat(found) * self.norms
        return np.asarray(norms.masked_fill(~self.norms.isfinite(), math.nan).numpy())

    def add_gradients(self, members: Sequence[Index], clip: float) -> Iterator[torch.Tensor]:
        """Yields the weighted sum of the clipped gradients of each group's rows, float64."""
        shape = self.weights.shape[1:]
        at_once = max(1, SUM_BYTES // (8 * shape.numel()))
        for first in range(0, len(members), at_once):
            part = members[first : first + at_once]
            sums = [torch.zeros(shape, dtype=torch.float64) for _ in part]
            for start, given, residuals in self.read_residuals(clip):
                if self.rows.weights is not None:
                    window = slice(start, start + len(given))
                    residuals = residuals * self.rows.weights[window, None]
                for total, index in zip(sums, part, strict=True):
                    low, high = np.searchsorted(index, [start, start + len(given)])
                    mine = torch.from_numpy(index[low:high] - start)
                    total += residuals[mine].T @ given[mine]
            yield from sums


def _measure_cell(
    cell: CellRecord,
    path: Path,
    head: MethodOptions,
    data: TrainingSet,
    grouped: GroupedExamples,
) -> GradientsCell:
    tensors = {name: torch.from_numpy(values) for name, values in load_file(path).items()}
    clip = head.max_grad_norm  # type: ignore[attr-defined]
    heads = [
        measure_head(gradients, clip, list(grouped.members.values()))
        for gradients in read_gradients(head, data, tensors, len(cell.seeds))
    ]
    return GradientsCell(
        method=cell.cell.method,
        epsilon=cell.cell.epsilon,
        epsilon_at_delta=cell.realised_epsilon if find_risk(cell.cell.epsilon) else None,
        private=cell.guaranteed,
        seeds=len(cell.seeds),
        max_grad_norm=clip,
        groups=tuple(
            GroupGradients(
                attribute=attribute,
                group=group,
                rows=len(rows),
                **{name: _spread([seed[name] for seed in seeds]) for name in seeds[0]},
            )
            for ((attribute, group), rows), *seeds in zip(
                grouped.members.items(), *heads, strict=True
            )
        ),
    )


def read_gradients(
    head: MethodOptions, data: TrainingSet, tensors: Mapping[str, torch.Tensor], seeds: int
) -> Iterator[ExampleGradients]:
    """Yields the gradients at each seed's head, on rows with the head's normalisation.

    Args:
      tensors: the tensors [seeds, ...] in a cell's file of heads.
    """
    spec = head.normalize
    for seed in range(seeds):
        if spec.priced:  # each seed released its own statistics
            arrays = {name: values[seed] for name, values in tensors.items() if name != "weights"}
            rows = Rows(data, Transform(spec, arrays))
        else:
            rows = data.make_once(spec, lambda: Rows(data, Transform(spec)))
        yield ExampleGradients.of_head(head, rows, tensors["weights"][seed : seed + 1])


def measure_head(
    gradients: ExampleGradients, clip: float, members: Sequence[Index]
) -> Iterator[dict[str, float]]:
    """Yields the values of `GroupGradients` at one head; the first of `members` has all rows."""
    norms = gradients.compute_norms()
    (unclipped,) = gradients.add_gradients(members[:1], math.inf)
    whole = None
    for index, total in zip(members, gradients.add_gradients(members, clip), strict=True):
        whole = total if whole is None else whole
        median, p90 = np.quantile(norms[index], (0.5, 0.9)).tolist()
        yield {
            "median": median,
            "p90": p90,
            "clipped": float((norms[index] > clip).mean()),
            "alignment": _cosine(total, whole),
            "unclipped_alignment": _cosine(total, unclipped),
        }


def _cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    """Returns the cosine of two sums of gradients; NaN if one is 0."""
    lengths = float(first.norm()) * float(second.norm())
    return float((first * second).sum()) / lengths if lengths else math.nan


def _spread(values: Sequence[float]) -> Spread | None:
    if any(map(math.isnan, values)):
        return None
    return Spread(mean=float(np.mean(values)), low=min(values), high=max(values))
