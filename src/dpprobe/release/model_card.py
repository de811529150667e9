"""The model card of a release: README.md in the form of the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dpprobe.artifacts import write_text
from dpprobe.release import documents
from dpprobe.release.bundle import CARD_FILE, BundleFacts
from dpprobe.release.parts.evaluation.show import METRICS, is_telling, round_result

CLASSES_SHOWN = 100
TAGS = ("differential-privacy", "dpprobe", "frozen-features")
# The Hugging Face Hub's names of dpprobe's metrics.
HUB_METRICS = {"accuracy": "accuracy", "auc": "roc_auc", "macro_accuracy": "balanced_accuracy"}


def write_card(folder: Path, facts: BundleFacts, statement: Mapping[str, Any]) -> None:
    table = documents.bound_best_attacks(statement, documents.RATES)
    template = documents.markdown_environment().get_template("card.md.j2")
    body = template.render(
        **documents.shared_values(facts, statement, table),
        base_model=documents.base_model(facts),
        shown=CLASSES_SHOWN,
    )
    write_text(folder / CARD_FILE, f"---\n{_front_matter(facts, statement)}---\n\n{body}")


def _front_matter(facts: BundleFacts, statement: Mapping[str, Any]) -> str:
    """Writes the Hub's keys in the order of its library, which `verify` need not have."""
    task, evaluation = _name_task(facts), statement["evaluation"]
    values: dict[str, Any] = {"base_model": documents.base_model(facts)}
    values["library_name"] = "dpprobe"
    values |= _license_keys(facts.card.license)
    tested = bool(evaluation) and is_telling(evaluation)
    if tested:
        values["metrics"] = [HUB_METRICS[evaluation["metric"]]]
    values |= {"pipeline_tag": task, "tags": list(TAGS)}
    if tested:
        dataset = {"name": f"{facts.dataset} (private)", "type": facts.dataset, "split": "test"}
        result = {"task": {"type": task}, "dataset": dataset, "metrics": [_hub_metric(evaluation)]}
        values["model-index"] = [{"name": facts.name, "results": [result]}]
    known = {key: value for key, value in values.items() if value is not None}
    return yaml.safe_dump(known, sort_keys=False, allow_unicode=True)


def _hub_metric(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    low, high = evaluation["interval"]
    return {
        "type": HUB_METRICS[evaluation["metric"]],
        "value": round_result(evaluation),
        "name": f"{METRICS[evaluation['metric']]}, measured with noise "
        f"(95% CI {low:.3f} to {high:.3f})",
    }


def _name_task(facts: BundleFacts) -> str:
    """Returns the Hub's name of the task; the Hub calls vectors rows of a table."""
    vectors = facts.backbone.takes_vectors
    return "tabular-classification" if vectors else "image-classification"


def _license_keys(written: str | None) -> dict[str, Any]:
    """Returns the Hub's model card keys for a license: an identifier, or `other` with a name."""
    if written is None:
        return {}
    if re.fullmatch(r"[a-z0-9][a-z0-9.-]*", written.lower()):
        return {"license": written.lower()}
    return {"license": "other", "license_name": documents.one_line(written)}
