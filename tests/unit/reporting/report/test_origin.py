"""Commands that reproduce results."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dpprobe.files.json_files import write_json
from dpprobe.reporting.report import origin
from dpprobe.reporting.report.sources import Origin, Sources
from tests.support.report_page import ReportedStudy

STUDY = Origin(study={"releases": {}}, results=Path("r/x"), call=["--configfile", "a b.yaml"])


def test_the_report_notes_local_changes_after_the_checkout_command(made: ReportedStudy) -> None:
    made.origin = replace(made.origin, commit="abc123 with local changes")
    assert "git checkout abc123 # with local changes, which the commit does not have" in " ".join(
        made.page().words.split()
    )


@pytest.mark.parametrize(
    ("commit", "checkout"),
    [
        (None, ""),
        ("abc", "git checkout abc"),
        (
            "abc with local changes",
            "git checkout abc  # with local changes, which the commit does not have",
        ),
    ],
)
def test_the_study_is_repeated_from_its_commit(commit: str | None, checkout: str) -> None:
    commands = origin.write_commands(replace(STUDY, commit=commit))
    assert commands["checkout"] == checkout
    assert commands["study"].endswith("--cores all --configfile 'a b.yaml'")
    assert commands["delete"] == "rm -r r/x/cells/DATASET/BACKBONE/METHOD/eps-EPSILON"


@pytest.mark.parametrize(
    ("epsilon", "budget"),
    [("0.5", 0.5), ("tpr-0.05-at-0.01", {"true_positives": 0.05, "at": 0.01})],
)
def test_a_release_has_the_settings_of_the_best_head(epsilon: str, budget: Any) -> None:
    best: Any = SimpleNamespace(dataset="d", backbone="a", method="m", epsilon=epsilon)
    release = origin.write_release(STUDY, best)
    settings = {"dataset": "d", "backbone": "a", "method": "m", "epsilon": budget}
    assert yaml.safe_load(release["block"]) == {"releases": {"d_v1": settings}}
    assert "release_d_v1 --cores all --configfile" in release["command"]
    named = origin.write_release(replace(STUDY, study={"releases": {"first": 1, "b": 2}}), best)
    assert list(yaml.safe_load(named["block"])["releases"]) == ["first"]
    assert "release_first --cores" in named["command"]


def test_the_provenance_has_versions_fingerprints_and_the_study(tmp_path: Path) -> None:
    manifests = [tmp_path / f"d/{backbone}/train/manifest.json" for backbone in ("vit", "pixels")]
    for path, weights in zip(manifests, ("w1", None), strict=True):
        write_json(path, {"features_sha256": f"f of {weights}", "weights_sha256": weights})
    sources = Sources(summaries=[], statements=[], datasets={}, manifests=manifests)
    infos: Any = {"d": SimpleNamespace(fingerprint="content of d")}
    proven = origin.collect_provenance(STUDY, infos, sources)
    assert proven["fingerprints"] == [
        ("data of d", "content", "content of d"),
        ("train features of d, vit", "values", "f of w1"),
        ("train features of d, pixels", "values", "f of None"),
        ("weights of vit", "SHA-256", "w1"),
        ("weights of pixels", "SHA-256", "no weights"),
    ]
    assert dict(proven["versions"])["numpy"] == metadata.version("numpy")
    assert yaml.safe_load(proven["config"]) == {"releases": {}}
    assert proven["commit"] == "not a git checkout"
    assert origin.collect_provenance(replace(STUDY, commit="abc"), {}, sources)["commit"] == "abc"
