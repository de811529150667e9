"""A job of an analysis gets exactly the arguments that its function names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.analyses.fairness.options import FairnessOptions
from dpprobe.analyses.long_tail.options import LongTailOptions
from dpprobe.analyses.measuring import find_analysis, measure_analysis
from dpprobe.analyses.sites.options import SimulatedSitesOptions


def _run(rule: str, job: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Runs a rule's job with two paths for each need that is a list."""
    analysis = find_analysis(rule)
    declared = analysis.measurement
    assert declared is not None
    monkeypatch.setattr("dpprobe.analyses.measuring.find_function", lambda _: job)
    measure_analysis(
        analysis,
        inputs={
            name: [f"in/{name}", "in/b"][: 1 + need.many] for name, need in declared.needs.items()
        },
        outputs=[f"r/{p.format(dataset='d', backbone='b')}" for p in declared.outputs.values()],
        wildcards={"dataset": "d", "backbone": "b"},
        params={"seed": 3, "version": 1, "options": options},
        threads=2,
        read_study=lambda: "the study",  # type: ignore[arg-type, return-value]
    )


NEEDED = {
    "compare_groups": {"metrics": [Path("in/metrics"), Path("in/b")]},
    "simulate_sites": {"train": Path("in/train"), "test": Path("in/test")},
    "measure_long_tail": {"train": Path("in/train")},
    "embed_tsne": {"manifest": Path("in/manifest")},
    "classify_zero_shot": {"test": Path("in/test"), "text": Path("in/text")},
    "probe_few_shot": {"train": Path("in/train"), "test": Path("in/test")},
}


@pytest.mark.parametrize("rule", NEEDED)
def test_a_job_gets_its_files_but_not_those_it_waits_for(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: dict[str, Any] = {}

    def job(folder: Any, dataset: Any, threads: Any, study: Any, seed: Any, **needed: Any) -> None:
        got.update(needed, given=(folder.name, dataset, threads, study, seed))

    _run(rule, job, monkeypatch, **({"counts": [2]} if rule == "simulate_sites" else {}))
    folders = {
        "compare_groups": "fairness",
        "simulate_sites": "sites",
        "measure_long_tail": "long_tail",
        "embed_tsne": "embeddings",
        "classify_zero_shot": "zero_shot",
        "probe_few_shot": "few_shot",
    }
    assert got.pop("given") == (folders[rule], "d", 2, "the study", 3)
    assert got == NEEDED[rule]


@pytest.mark.parametrize(
    ("rule", "options", "expected"),
    [
        ("compare_groups", {"resamples": 999}, FairnessOptions(resamples=999)),
        ("simulate_sites", {"counts": [2]}, SimulatedSitesOptions(counts=(2,))),
        ("measure_long_tail", {"rows": 99}, LongTailOptions(rows=99)),
        ("embed_tsne", {"points": 9}, {"points": 9}),
    ],
)
def test_options_are_read_where_the_analysis_has_a_class_for_them(
    rule: str, options: dict[str, Any], expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: list[Any] = []
    _run(rule, lambda options, **_: got.append(options), monkeypatch, **options)
    assert got == [expected]


def test_a_study_is_read_only_for_a_job_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []
    monkeypatch.setattr(
        "dpprobe.analyses.measuring.find_function",
        lambda _: lambda manifest, seed: got.append((manifest, seed)),
    )

    def never() -> Any:
        raise AssertionError("not asked for")

    measure_analysis(
        find_analysis("embed_tsne"),
        inputs={"manifest": ["m"], "shards": ["s"]},
        outputs=["r/embeddings/d/b/tsne.parquet"],
        wildcards={"dataset": "d", "backbone": "b"},
        params={"seed": 5, "options": {}},
        threads=1,
        read_study=never,
    )
    assert got == [(Path("m"), 5)]
    with pytest.raises(KeyError):
        find_analysis("no_rule")
