"""Sections of the report: the headline, the study that was run, and all cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpprobe.analyses.baseline_record import read_zero_shot
from dpprobe.backbones.registry import backbone_options
from dpprobe.data.downloads.addresses import public_addresses
from dpprobe.data.table import DatasetInfo
from dpprobe.privacy.limits import rounded_up
from dpprobe.privacy.risk import budget_words, explain_risks, row_words
from dpprobe.privacy.trade_off import per_hundred
from dpprobe.reporting.headline import (
    choice_words,
    list_doubts,
    tested_words,
    upper_first,
    verdict,
    worst_class,
)
from dpprobe.reporting.report import statements
from dpprobe.reporting.report.curve import draw_curve
from dpprobe.reporting.report.origin import cell_command
from dpprobe.reporting.report.sources import Origin
from dpprobe.reporting.report.statements import Statement, public_data
from dpprobe.results.best_private import Best
from dpprobe.results.cell_record import HEADLINES
from dpprobe.results.summary import Grid, own_epsilon
from dpprobe.results.uncertainty import SEED_INTERVAL


def make_card(
    best: Best,
    bests: Sequence[Best],
    info: DatasetInfo,
    *,
    cautions: Sequence[str],
    plan: Mapping[str, Any] | None,
    unplanned: str,
    subgroups: bool,
) -> dict[str, Any]:
    """Makes a dataset's card: verdict, curve, prospects and caveats.

    `best` is the best result at the verdict's epsilon; `bests` has the best result at each epsilon.
    `plan` is a part from `plan_parts`; if None, `unplanned` explains the reason.
    """
    doubts = (*list_doubts(best), *cautions)
    caveats: list[tuple[str, str | None]] = [(text, None) for text in doubts]
    if words := choice_words(best):
        if best.choice.epsilon is not None:
            cost = f"{rounded_up(best.choice.epsilon):g}"
            words += f" Publishing this selection costs at most ε = {cost}"
        caveats.append((words, "selection"))
    for text in (_name_untested(info), info.rare_classes_note):
        if text:
            caveats.append((text, "run"))
    return {
        "dataset": best.dataset,
        "anchor": f"dataset-{best.dataset}",
        "backbone": best.backbone,
        "verdict": verdict(best),
        "curve": draw_curve(bests),
        "alt": f"Best private test {best.measure.title} by privacy budget. "
        + "; ".join(f"ε = {each.budget}: {each.entry.mean:.1f}%" for each in bests),
        "facts": _list_facts(best, info, plan, unplanned, subgroups=subgroups),
        "caveats": [(_end_sentence(text), link) for text, link in caveats],
    }


def _list_facts(
    best: Best,
    info: DatasetInfo,
    plan: Mapping[str, Any] | None,
    unplanned: str,
    *,
    subgroups: bool,
) -> list[tuple[str, str, str | None]]:
    over = f"95% CI over {tested_words(best.entry)}"
    facts: list[tuple[str, str, str | None]] = [
        ("Head", f"{best.method} on {best.backbone}; {over}", None)
    ]
    if best.entry.least is not None:
        words = worst_class(best)
        facts.append((upper_first(best.entry.least_title), words, None))
    if best.zero_shot is not None:
        backbone, metric, value = best.zero_shot
        other = "" if metric == best.measure.headline else f" {HEADLINES[metric]}"
        facts.append(("Zero-shot", f"{backbone} reaches {value:.1f}%{other}", None))
    link = f"plans-{best.dataset}"
    if plan is None:
        facts.append(("More images or budget", unplanned, None))
    else:
        words = f"not predicted: {plan['misfit']}"
        for row in plan["rows"]:
            if row["epsilon"] == row_words(best.at):
                words = f"from the measured {best.entry.mean:.1f}%, public learning curves predict "
                words += f"{row['images'][0]} with twice the {plan['unit']}s"
                words += f", {row['budget']} with twice the budget" if row["budget"] else ""
        facts.append(("More images or budget", words, link))
    if subgroups:
        facts.append(("Subgroups", "gaps between groups, private and non-private", "subgroups"))
    elif info.groups:
        names = ", ".join(info.groups)
        facts.append(("Subgroups", f"not compared; add `fairness: {{}}` to compare {names}", None))
    return facts


def _end_sentence(text: str) -> str:
    text = upper_first(text)
    return text if text.endswith(".") else f"{text}."


def _name_untested(info: DatasetInfo) -> str:
    names = info.untested_classes
    if not names:
        return ""
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"{len(names)} of {info.num_classes} classes have no test image: {shown}"


def zero_shot_results(paths: Sequence[Path]) -> dict[tuple[str, str], tuple[str, float]]:
    """Maps (dataset, backbone) to the headline metric and percent of its zero-shot result."""
    return {
        (record["dataset"], record["backbone"]): (
            record["headline"],
            100 * record["metrics"][record["headline"]],
        )
        for record in map(read_zero_shot, paths)
    }


def list_cells(summary: Any, shown: Sequence[Statement], origin: Origin) -> list[dict[str, Any]]:
    anchors, allows = {}, {}
    for index, item in enumerate(shown):
        for backbone, _ in item.cells:
            key = (item.dataset, backbone, item.content.get("method"), item.epsilon)
            allows[key] = per_hundred(item.content["allows"]["balanced_accuracy"])
            anchors[key] = item.anchor if index < statements.STATEMENTS_SHOWN else None
    cells = []
    keys = ["dataset", "backbone", "method", "epsilon_token"]
    for key, rows in summary.groupby(keys, sort=False):
        first = rows.iloc[0]
        name = str(first.headline)
        ends = ("low", "high", "rows_low", "rows_high", "both_low", "both_high")
        values = {part: 100 * float(first[f"{name}_{part}"]) for part in ends}
        cells.append(
            {
                **dict(zip(("dataset", "backbone", "method", "epsilon"), key, strict=True)),
                **(
                    {"epsilon": budget_words(cell_epsilon)}
                    if (cell_epsilon := own_epsilon(first))
                    else {}
                ),
                "value": 100 * float(rows[name].mean()),
                **values,
                "over_seeds": first[f"{name}_interval"] == SEED_INTERVAL,
                "over_rows": not math.isnan(values["rows_low"]),
                "over_both": not math.isnan(values["both_low"]),
                "least": None if math.isnan(first.least) else 100 * float(first.least),
                "least_class": first.least_class or "",
                "private": bool(first.private),
                "realised": _format_number(first.realised_epsilon),
                "allows": allows.get(key, ""),
                "seeds": len(rows),
                "anchor": anchors.get(key),
                "command": cell_command(origin, *key),
            }
        )
    return cells


def what_was_run(
    study: Mapping[str, Any],
    grid: Grid,
    infos: Mapping[str, DatasetInfo],
    shown: Sequence[Statement],
    summary: Any,
) -> dict[str, Any]:
    datasets = [
        {
            "name": name,
            "train": info.train_rows,
            "test": info.test_rows,
            "patients": info.units,
            "classes": info.num_classes,
            "labels": "several labels per row" if info.multi_label else "one label per row",
            "measure": grid.measures[name].title if name in grid.measures else "",
            "delta": grid.delta_text(name) or "none",
            "source": _describe_source(public_addresses(info.source)),
            "untested": _name_untested(info),
            "rare": info.rare_classes_note,
        }
        for name, info in infos.items()
    ]
    dimensions = summary.groupby("backbone").dimension.unique()
    backbones = [
        {
            "name": name,
            "options": "; ".join([one_line(options), *backbone_options(options).list_warnings()]),
            "dimension": ", ".join(str(int(d)) for d in dimensions.get(name, ())),
        }
        for name, options in study["backbones"].items()
    ]
    methods = [
        {"name": name, "head": options["head"], "options": _method_options(options)}
        for name, options in study["methods"].items()
    ]
    return {
        "datasets": datasets,
        "backbones": backbones,
        "public_data": public_data(shown),
        "methods": methods,
        "epsilons": ", ".join(budget_words(str(each)) for each in study["epsilons"]),
        "risks": explain_risks(grid.risks),
    }


def _method_options(options: Mapping[str, Any]) -> str:
    """Formats a method's options; for `auto`, only options that the study sets."""
    if options["head"] != "auto":
        return one_line(options, skip=("head",))
    asked = one_line(options, skip=("head", "normalize"))
    chosen = "its rule chooses all other options for each cell; see the privacy statements"
    return f"{asked}; {chosen}" if asked else chosen


def one_line(options: Mapping[str, Any], skip: Sequence[str] = ()) -> str:
    return ", ".join(
        f"{name} {_write_value(value)}"
        for name, value in options.items()
        if name not in skip and value not in (None, [], {}, ())
    )


def _write_value(value: Any) -> str:
    """Formats a value as in a study file, but without quotes and braces."""
    if isinstance(value, Mapping):
        return f"({one_line(value)})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_write_value, value))}]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _describe_source(source: Mapping[str, Any]) -> str:
    """Describes where a dataset comes from: its source, then the options of the source."""
    kind = str(source.get("source", "unknown"))
    options = one_line(source, skip=("source",))
    return f"{kind}: {options}" if options else kind


def _format_number(value: Any) -> str:
    return "" if value is None or math.isnan(value) else f"{rounded_up(float(value)):g}"
