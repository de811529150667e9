"""Compares our results with published numbers, and lists the differences between settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from dpprobe.exhibits.published import Number, Published
from dpprobe.heads.registry import NETWORKS
from dpprobe.reporting.paper_tables.common import TITLES
from dpprobe.results.cell_results import compare_means
from dpprobe.study import catalog
from reproduction.facts import Entry, Facts, Ours, Weights, place
from reproduction.record import Result

CHANGE = "accuracy change"
# Maps a published metric to the metric of our cells; cells have no throughput.
METRICS = {"accuracy": "accuracy", CHANGE: "accuracy", "auc": "auc"}
PUBLISHED_CORES = "TPUv4 cores"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A published number and, if something comparable was run, our result.

    Attributes:
      result: our cell; None without a comparable cell.
      measured: our throughput, as `bench/throughput.py` writes it.
      value, ends: our result in the number's unit, and its 95% interval; Welch's for a change.
      gap: our result minus the published value; None if the paper writes words.
      unlike: differences of our setting from the published setting; empty if like for like.
      silent: settings that the paper does not state, which therefore cannot be compared.
      weights: the published weights, if the entry names them.
    """

    number: Number
    entry: Entry
    result: Result | None = None
    measured: Mapping[str, Any] | None = None
    value: float | None = None
    ends: tuple[float, float] | None = None
    gap: float | None = None
    unlike: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    weights: Weights | None = None

    @property
    def needs_private_weights(self) -> bool:
        return self.weights is not None and self.weights.access == "private"

    @property
    def run(self) -> bool:
        """True if a cell or a throughput of ours is compared with the number."""
        return self.result is not None or self.measured is not None

    @property
    def like_for_like(self) -> bool:
        """True if our result was run as published, as far as the paper states the setting."""
        return self.run and not self.unlike


def compare_all(
    published: Published,
    facts: Facts,
    results: Sequence[Result],
    throughput: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Comparison]:
    """Compares every published number, in the order of the papers' tables.

    Args:
      throughput: the throughput of a record.

    Raises:
      ConfigError: if a number is in no entry or in several entries.
    """
    entries = facts.by_number(published)
    # a part gets the whole dataset's name: numbers of training images still distinguish them
    named = [replace(r, dataset=facts.parts.get(r.dataset, r.dataset)) for r in results]
    return [
        _compare_throughput(number, entry, throughput or {})
        if (entry := entries[place(number)]).networks
        else _compared(number, entry, facts, named)
        for number in published.numbers
    ]


def _compare_throughput(
    number: Number, entry: Entry, throughput: Mapping[str, Mapping[str, Any]]
) -> Comparison:
    """Compares images per second of one core, or the speed-up of the last layer, with a number."""
    names = entry.networks.get(number.row, ())
    # rates are compared only for equal networks, speed-ups also for other networks
    for name in names if number.metric == "speed-up" else names[:1]:
        measured = throughput.get(name, {})
        rates = measured.get("rates", {})
        value = rates.get(number.column)
        if number.metric == "speed-up" and {"full", "last"} <= rates.keys():
            value = rates["last"] / rates["full"]
        if value is not None:
            other = f"{measured['model']} at {measured['side']} px, not {number.row}"
            unlike = (
                f"{measured['machine']}, not {PUBLISHED_CORES}",
                *([] if measured["row"] == number.row else [other]),
                *measured["unlike"],
            )
            return Comparison(
                number=number,
                entry=entry,
                measured=measured,
                value=value,
                gap=value - number.value,
                unlike=unlike,
            )
    return Comparison(number=number, entry=entry)


def _compared(number: Number, entry: Entry, facts: Facts, results: Sequence[Result]) -> Comparison:
    """Compares a number with the entry's first choice of cells that was run."""
    weights = facts.weights[entry.weights] if entry.weights else None
    for ours in entry.ours:
        beside = _candidates(number, ours, results)
        chosen = _chosen(beside, ours.methods, ours.take)
        base = None
        if ours.base:
            start = ours.model_copy(update={"backbone": ours.base_backbone or ours.backbone})
            base = _chosen(_candidates(number, start, results), (ours.base,), ours.take)
        if chosen is None or (number.metric == CHANGE and base is None):
            continue
        value, ends = _value(number, chosen, base)
        return Comparison(
            number=number,
            entry=entry,
            result=chosen,
            value=value,
            ends=ends,
            gap=None if math.isnan(number.value) else value - number.value,
            unlike=tuple(_unlike(number, entry, weights, chosen)),
            silent=tuple(_silent(number, weights)),
            weights=weights,
        )
    return Comparison(number=number, entry=entry, weights=weights)


def _chosen(beside: Sequence[Result], methods: Sequence[str], take: str) -> Result | None:
    """Returns the result to compare, from methods in order of preference; None without one."""
    named = [r for pattern in methods for r in beside if fnmatchcase(r.method, pattern)]
    if take != "first":
        named.sort(key=lambda result: result.mean, reverse=take == "highest")
    return named[0] if named else None


def _candidates(number: Number, ours: Ours, results: Sequence[Result]) -> list[Result]:
    """Lists the results of a study at the number's dataset, epsilon and metric."""
    metric = METRICS.get(number.metric)
    return [
        result
        for result in results
        if result.study == ours.study
        and result.dataset == (ours.dataset or number.dataset)
        and (ours.backbone is None or result.backbone == ours.backbone)
        and _beside(result.epsilon, ours.epsilon or number.epsilon)
        and result.metric == metric
        # batch sizes are comparable only on the same dataset
        and (ours.dataset or number.batch_size in (None, _batch(result)))
    ]


def _batch(result: Result) -> int | None:
    """Returns the expected rows of a step; None for a method without batches."""
    size = result.options.get("base", result.options).get("batch_size")
    return result.train_rows if size == "full" else size


def _beside(epsilon: float, wanted: Any) -> bool:
    """Returns True if an epsilon is the wanted number, or within the wanted range."""
    if wanted is None:
        return False
    if isinstance(wanted, tuple):
        return bool(wanted[0] <= epsilon <= wanted[1])
    return bool(epsilon == wanted)


def _value(
    number: Number, result: Result, base: Result | None
) -> tuple[float, tuple[float, float] | None]:
    """Returns our result in the unit of the published number, and the ends of its interval."""
    if number.metric == CHANGE and base is not None:
        gap, half = compare_means(base.values, result.values)
        return 100 * gap, None if half is None else (100 * (gap - half), 100 * (gap + half))
    scale = 1 if number.metric == "auc" else 100
    if result.low is None or result.high is None:
        return scale * result.mean, None
    return scale * result.mean, (scale * result.low, scale * result.high)


def _unlike(number: Number, entry: Entry, weights: Weights | None, result: Result) -> list[str]:
    """Lists our differences from the published setting, the most important first."""
    parts = []
    if number.dataset is not None and result.dataset != number.dataset:
        parts.append(f"{title(result.dataset)}, not {title(number.dataset)}")
    elif (rows := published_rows(number)) and rows != result.train_rows:
        parts.append(f"{result.train_rows:,} training images, not {rows:,}")
    if weights is not None and not _same_backbone(weights, result.backbone_options):
        parts.append(f"{_model(result)}, not {weights.title}")
    trained = number.tuning in ("full", "blocks", "from scratch")
    if result.network != (trained or entry.recipe.get("head") in NETWORKS):
        parts.append("a network tuned, not the head" if result.network else "only the head trained")
    elif blocks := _other_blocks(number, result):
        parts.append(blocks)
    if number.batch_size not in (None, _batch(result)):
        parts.append(f"batches of {_batch(result) or 'all'}, not {number.batch_size}")
    if isinstance(number.epsilon, float) and result.epsilon != number.epsilon:
        parts.append(f"ε {result.epsilon:g}, not {number.epsilon:g}")
    if None not in (number.delta, result.delta) and number.delta != result.delta:
        parts.append(f"δ {result.delta:g}, not {number.delta:g}")
    options = {**result.options, "epochs": _epochs(result)}
    parts += [
        f"{name} {_brief(options.get(name))}, not {_brief(value)}"
        for name, value in entry.recipe.items()
        if options.get(name) != value
    ]
    searched = math.isfinite(result.epsilon) and not result.private
    if searched and number.learning_rate != "tuned":
        parts.append("hyperparameters searched on private images, not covered by ε")
    return parts


def _other_blocks(number: Number, result: Result) -> str:
    """States how many blocks we tuned if the paper tuned another number; else empty."""
    wanted = number.blocks
    if wanted is None:
        return ""
    low, high = wanted if isinstance(wanted, tuple) else (wanted, wanted)
    tune = result.options.get("tune")
    tuned = tune.get("blocks") if isinstance(tune, Mapping) else None
    if tuned is not None and low <= tuned <= high:
        return ""
    span = f"{low}" if low == high else f"{low} to {high}"
    number_tuned = {"head": "none", "all": "all"}.get(str(tune), str(tuned))
    return f"{number_tuned} of its blocks tuned, not {span}"


def _epochs(result: Result) -> float | None:
    """Returns the passes over the data, rounded, because batches need not divide the rows."""
    return None if result.passes is None else round(result.passes, 1)


def _silent(number: Number, weights: Weights | None) -> list[str]:
    """Lists the settings that the paper does not state."""
    parts = []
    if weights is not None and not weights.stated:
        parts.append("its weights")
    if number.epsilon is None or "epsilon" in number.inferred:
        parts.append("ε")
    elif number.delta is None and number.epsilon != math.inf:
        parts.append("δ")
    if "delta" in number.inferred:
        parts.append("δ")
    if number.learning_rate == "tuned":
        parts.append("the privacy cost of its search")
    return parts


def published_rows(number: Number) -> int | None:
    """Returns the training images of a number's dataset, or of the part that the paper took."""
    if number.train_rows is not None:
        return number.train_rows
    if number.dataset not in catalog.dataset_names():
        return None
    return catalog.dataset_entry(number.dataset).sizes.train


def _same_backbone(weights: Weights, options: Mapping[str, Any]) -> bool:
    return bool(weights.backbone) and all(
        options.get(name) == value for name, value in weights.backbone.items()
    )


def _model(result: Result) -> str:
    """Returns a backbone's name, with its model if the name differs from the model."""
    model = result.backbone_options.get("model")
    return f"{result.backbone} ({model})" if model and model != result.backbone else result.backbone


def title(dataset: str) -> str:
    """Returns a dataset's title, in the spelling of the papers' tables if they have one."""
    if dataset in TITLES or dataset not in catalog.dataset_names():
        return TITLES.get(dataset, dataset)
    return catalog.dataset_entry(dataset).title


def _brief(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return str(value.get("kind", "other"))
    return "absent" if value is None else str(value)
