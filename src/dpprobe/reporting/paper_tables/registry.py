"""The papers' tables by name, each with a test of whether a study measures a row of it.

Every start of Snakemake reads this module: it imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.options import MethodOptions
from dpprobe.study.ablations import OPTIMISERS, best_base
from dpprobe.study.comparisons import has_guarantee, list_guaranteed
from dpprobe.study.study import Study

SECOND_ORDER = ("least_squares", "newton", "feature_covariance")
SMALL_BATCH = 2**17  # table 9 of Mehta et al. 2022 has smaller ones


def _has_chosen_methods(study: Study) -> bool:
    chosen = study.papers.methods
    return any(not chosen or name in chosen for name in list_guaranteed(study))


def _reads_text_or_probes(study: Study) -> bool:
    return bool(study.text_backbones() or study.few_shot_backbones())


def _has_head(study: Study, head: str) -> bool:
    return any(method.head == head for method in study.methods.values())


def _has_small_batches(study: Study) -> bool:
    return any(
        isinstance(method, GradientOptions)
        and method.head == "momentum"
        and method.batch_size != "full"
        and method.batch_size < SMALL_BATCH
        for method in study.methods.values()
    )


def _has_private_head(study: Study, *heads: str) -> bool:
    return any(method.head in heads for method in list_guaranteed(study).values())


def _has_changes(study: Study) -> bool:
    options = {
        name: method.model_dump(mode="json")
        for name, method in study.methods.items()
        if method.head in OPTIMISERS
    }
    return has_guarantee(study) and (study.papers.base or best_base(options)) is not None


def _counts_steps(study: Study) -> bool:
    return any(map(_takes_head_steps, list_guaranteed(study).values()))


def _takes_head_steps(method: MethodOptions) -> bool:
    """True if a fit takes gradient steps of a linear head, as what `auto` chooses does."""
    return method.is_undecided or (isinstance(method, GradientOptions) and not method.tunes_network)


def _has_real_labels(study: Study) -> bool:
    return any(
        getattr(options, "accepted_labels", None) is not None for options in study.datasets.values()
    )


def _names_auc(study: Study) -> bool:
    """True if the study or the catalog says that a dataset's metric is AUC."""
    return any(options.metric == "auc" for options in study.datasets.values())


PAPER_TABLES: dict[str, Callable[[Study], bool]] = {
    "foundation_features_table2": _has_chosen_methods,
    "foundation_features_table3": _reads_text_or_probes,
    "foundation_features_theorem": has_guarantee,
    "large_scale_transfer_table1": partial(_has_head, head="momentum"),
    "large_scale_transfer_table2": partial(_has_head, head="lamb"),
    "large_scale_transfer_table3": lambda study: _has_private_head(study, "lamb"),
    "large_scale_transfer_table4": _has_changes,
    "large_scale_transfer_table8": _counts_steps,
    "large_scale_transfer_table9": _has_small_batches,
    "large_scale_transfer_figure1b": _counts_steps,
    "large_scale_transfer_figure4": _has_real_labels,
    "features_second_order_headline": lambda study: _has_private_head(
        study, *SECOND_ORDER, *OPTIMISERS
    ),
    "medical_fine_tuning_auc": _names_auc,
}


def list_paper_tables(study: Study) -> list[str]:
    """Lists the papers' tables that show a measured row of a study; no other is written."""
    return [name for name, is_measured in PAPER_TABLES.items() if is_measured(study)]
