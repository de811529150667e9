"""The model card of a release: README.md in the form of the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    from huggingface_hub import EvalResult, ModelCardData  # heavy: httpx

    evaluation = statement["evaluation"]
    values: dict[str, Any] = _license_keys(facts.card.license)
    if evaluation and is_telling(evaluation):
        metric = HUB_METRICS[evaluation["metric"]]
        low, high = evaluation["interval"]
        result = EvalResult(
            task_type=_name_task(facts),
            dataset_type=facts.dataset,
            dataset_name=f"{facts.dataset} (private)",
            dataset_split="test",
            metric_type=metric,
            metric_name=f"{METRICS[evaluation['metric']]}, measured with noise "
            f"(95% CI {low:.3f} to {high:.3f})",
            metric_value=round_result(evaluation),
        )
        values |= {"metrics": [metric], "model_name": facts.name, "eval_results": [result]}
    data = ModelCardData(
        library_name="dpprobe",
        pipeline_tag=_name_task(facts),
        tags=list(TAGS),
        base_model=documents.base_model(facts),
        **values,
    )
    return f"{data.to_yaml()}\n"


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
