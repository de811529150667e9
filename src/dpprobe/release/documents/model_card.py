"""The model card of a release: README.md in the form of the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from dpprobe.release.bundle import BundleFacts
from dpprobe.release.documents.document_values import (
    RATES,
    bound_best_attacks,
    hub_name,
    markdown_environment,
    one_line,
    shared_values,
)

CLASSES_SHOWN = 100
TAGS = ("differential-privacy", "dpprobe", "frozen-features")
# The Hugging Face Hub's names of dpprobe's metrics.
HUB_METRICS = {"accuracy": "accuracy", "auc": "roc_auc", "macro_accuracy": "balanced_accuracy"}


def make_card(facts: BundleFacts, statement: Mapping[str, Any]) -> str:
    table = bound_best_attacks(statement, RATES)
    template = markdown_environment().get_template("card.md.j2")
    values = shared_values(facts, statement, table)
    body = template.render(**values, hub_name=hub_name, shown=CLASSES_SHOWN)
    return f"---\n{_front_matter(facts, values)}---\n\n{body}"


def _front_matter(facts: BundleFacts, shown: Mapping[str, Any]) -> str:
    """Writes the Hub's keys in the order of its library, which `verify` does not require."""
    task, evaluation = _name_task(facts), shown["evaluation"]
    values: dict[str, Any] = {"base_model": _list_models(facts)}
    values["library_name"] = "dpprobe"
    values |= _license_keys(facts.card.license)
    if shown["telling"]:
        values["metrics"] = [HUB_METRICS[evaluation["metric"]]]
    values |= {"pipeline_tag": task, "tags": list(TAGS)}
    if shown["telling"]:
        dataset = {"name": f"{facts.dataset} (private)", "type": facts.dataset, "split": "test"}
        result = {"task": {"type": task}, "dataset": dataset, "metrics": [_hub_metric(shown)]}
        values["model-index"] = [{"name": facts.name, "results": [result]}]
    known = {key: value for key, value in values.items() if value is not None}
    return yaml.safe_dump(known, sort_keys=False, allow_unicode=True)


def _list_models(facts: BundleFacts) -> str | list[str] | None:
    """Returns the Hub's names of the backbone, or of the members of a joined backbone."""
    names = [name for one in facts.backbone.parts if (name := hub_name(one)) is not None]
    return names if len(names) > 1 else next(iter(names), None)


def _hub_metric(shown: Mapping[str, Any]) -> dict[str, Any]:
    low, high = shown["evaluation"]["interval"]
    return {
        "type": HUB_METRICS[shown["evaluation"]["metric"]],
        "value": shown["rounded"],
        "name": f"{shown['metric']}, measured with noise (95% CI {low:.3f} to {high:.3f})",
    }


def _name_task(facts: BundleFacts) -> str:
    """Returns the Hub's name of the task; for vectors, the task for rows of a table."""
    vectors = facts.backbone.takes_vectors
    return "tabular-classification" if vectors else "image-classification"


def _license_keys(written: str | None) -> dict[str, Any]:
    """Returns the Hub's model card keys for a license: an identifier, or `other` with a name."""
    if written is None:
        return {}
    if re.fullmatch(r"[a-z0-9][a-z0-9.-]*", written.lower()):
        return {"license": written.lower()}
    return {"license": "other", "license_name": one_line(written)}
