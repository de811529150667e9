"""Draws what fine-tuning gains over heads: `docs/images/fine_tuning.png`.

snakemake --cores all heads --configfile config/chest_xray_fine_tuning_local.yaml
python bench/fine_tuning_figure.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parents[1]
CELLS = ROOT / "results/chest_xray_fine_tuning_local/cells/chest_xray/mobilenetv2"
FIGURE = ROOT / "docs/images/fine_tuning.png"
EPSILONS = ("0.5", "1", "2", "4", "8", "inf")
METHODS = {
    "feature_covariance": "best head: feature_covariance",
    "block_1": "last block and head, fine-tuned",
    "head": "head alone, the same steps",
}


def read_auc(method: str, epsilon: str) -> dict[str, Any]:
    record = json.loads((CELLS / method / f"eps-{epsilon}" / "metrics.json").read_text())
    auc: dict[str, Any] = record["summary"]["auc"]
    return auc


def main() -> None:
    figure, axis = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for number, (method, label) in enumerate(METHODS.items()):
        cells = [read_auc(method, epsilon) for epsilon in EPSILONS]
        means = [cell["mean"] for cell in cells]
        errors = [
            [mean - cell["both_low"] for mean, cell in zip(means, cells, strict=True)],
            [cell["both_high"] - mean for mean, cell in zip(means, cells, strict=True)],
        ]
        places = [index + 0.08 * (number - 1) for index in range(len(EPSILONS))]
        axis.errorbar(places, means, errors, fmt="o-", capsize=3, markersize=4, label=label)
    ceiling = read_auc("nonprivate", "inf")["mean"]
    axis.axhline(ceiling, color="grey", linestyle="--", label="head without privacy")
    axis.set_xticks(range(len(EPSILONS)), [each.replace("inf", "∞") for each in EPSILONS])
    axis.set(xlabel="ε", ylabel="AUC on 529 other patients")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", fontsize=8)
    figure.savefig(FIGURE, dpi=110)


if __name__ == "__main__":
    main()
