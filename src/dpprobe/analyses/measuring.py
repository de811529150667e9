"""Runs the job of an analysis with the files and params of a Snakemake rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpprobe.analyses.analysis import Analysis
from dpprobe.analysis_registry import load_analyses
from dpprobe.exhibits.make import find_function, read_needs
from dpprobe.study.study import Study


def find_analysis(rule: str) -> Analysis:
    """Returns the analysis whose job a Snakemake rule runs; raises KeyError for another rule."""
    measured: dict[str, Analysis] = {
        each.measurement.rule: each for each in load_analyses() if each.measurement
    }
    return measured[rule]


def measure_analysis(
    analysis: Analysis,
    *,
    inputs: Mapping[str, Sequence[str]],
    outputs: Sequence[str],
    params: Mapping[str, Any],
    wildcards: Mapping[str, str],
    threads: int,
    read_study: Callable[[], Study],
) -> None:
    """Runs one job of an analysis.

    Args:
      inputs: the paths of input files, by the name of the declared input (`Need`).
      outputs: the paths of the outputs, in the order of the analysis's declaration.
      read_study: returns the study; called only if the job's function has a parameter `study`.
    """
    declared = analysis.measurement
    assert declared is not None
    job = find_function(declared.job)
    asked = inspect.signature(job).parameters
    first, pattern = Path(outputs[0]), next(iter(declared.outputs.values()))
    # `pattern` is "<folder>/<dataset>/...", and the job gets the path of <folder>.
    offered = {
        **params,
        **wildcards,
        "threads": threads,
        "folder": first.parents[pattern.count("/") - 1],
    }
    if "study" in asked:
        offered["study"] = read_study()
    if "options" in asked and analysis.options is not None:
        offered["options"] = analysis.options.model_validate(params["options"])
    offered |= {
        name or "output": Path(path) for name, path in zip(declared.outputs, outputs, strict=True)
    }
    given = {name: value for name, value in offered.items() if name in asked}
    job(**given, **read_needs(declared.needs, inputs))
