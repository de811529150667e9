"""The papers' tables by name, each with a check if a study needs it and the function to make it.

Every start of Snakemake imports this module, so its imports are fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.options import MethodOptions
from dpprobe.study.ablations import OPTIMISERS, best_base
from dpprobe.study.comparisons import has_guarantee, list_guaranteed
from dpprobe.study.study import Study

SECOND_ORDER = ("least_squares", "newton", "feature_covariance")
SMALL_BATCH = 2**17  # table 9 of Mehta et al. 2022 has smaller batches


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
    return method.is_undecided or (isinstance(method, GradientOptions) and not method.tunes_network)


def _names_auc(study: Study) -> bool:
    return any(options.metric == "auc" for options in study.datasets.values())


class PaperTable(NamedTuple):
    """One table of a paper.

    Attributes:
      is_measured: returns True if a study measures a row of the table.
      make: "module:function" in this package, for a `Run`, the published numbers and `options`.
    """

    is_measured: Callable[[Study], bool]
    make: str
    options: Mapping[str, str] = MappingProxyType({})


PAPER_TABLES: dict[str, PaperTable] = {
    "foundation_features_table2": PaperTable(
        _has_chosen_methods, "foundation_features:private_results"
    ),
    "foundation_features_table3": PaperTable(
        _reads_text_or_probes, "foundation_features:few_shot_results"
    ),
    "large_scale_transfer_table1": PaperTable(
        partial(_has_head, head="momentum"), "batch_sizes:batch_sizes", {"table": "1"}
    ),
    "large_scale_transfer_table2": PaperTable(
        partial(_has_head, head="lamb"), "batch_sizes:batch_sizes", {"table": "2"}
    ),
    "large_scale_transfer_table3": PaperTable(
        lambda study: _has_private_head(study, "lamb"), "batch_sizes:model_sizes"
    ),
    "large_scale_transfer_table4": PaperTable(_has_changes, "large_scale_transfer:ablation_table"),
    "large_scale_transfer_table9": PaperTable(
        _has_small_batches, "batch_sizes:batch_sizes", {"table": "9"}
    ),
    "large_scale_transfer_figure1b": PaperTable(_counts_steps, "large_scale_transfer:passes_table"),
    "features_second_order_headline": PaperTable(
        lambda study: _has_private_head(study, *SECOND_ORDER, *OPTIMISERS),
        "features_second_order:second_order_heads",
    ),
    "medical_fine_tuning_auc": PaperTable(_names_auc, "medical_fine_tuning:radiographs_table"),
}


def list_paper_tables(study: Study) -> list[str]:
    """Lists the papers' tables of which a study measures at least one row."""
    return [name for name, table in PAPER_TABLES.items() if table.is_measured(study)]
