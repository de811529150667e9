"""Passports of real releases are valid by the registry's schema and readable by another library."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.errors import WaitingError
from dpprobe.release.bundle import CARD_FILE, PAGE_FILE, STATEMENT_FILE, read_bundle
from dpprobe.release.passport import QUESTIONS_FILE, write_passport
from dpprobe.release.passport_forms import list_fields
from dpprobe.release.verification.verify import verify_bundle
from tests.support.deployment_registry import find_faults
from tests.support.mechanisms import exact_epsilon
from tests.support.refusals import check_tokens
from tests.support.release_study import release, study, write_features
from tests.support.site_study import make_sites

TESTED = {"evaluate": {"epsilon": 2}}


def of_images(folder: Path) -> Path:
    """Makes a release as in the tutorial: images and a test result."""
    write_features(folder)
    return release(folder, study(folder, **TESTED))


def of_patients(folder: Path) -> Path:
    """Makes a release with two images per patient and calibrated probabilities."""
    write_features(folder, images_per_patient=2)
    return release(folder, study(folder, of_patients=True, calibrate={"epsilon": 8}, **TESTED))


def of_sites(folder: Path) -> Path:
    sites = make_sites(folder, method="sums")
    for site in sites:
        site.task().make_offer()
    for _ in range(10):
        for site in sites:
            try:
                site.task().run()
            except WaitingError:
                continue
    return sites[0].task().output


@pytest.fixture(scope="module", params=[of_images, of_patients, of_sites])
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Callable[[Path], Path], Path]:
    bundle = request.param(tmp_path_factory.mktemp(request.param.__name__))
    return request.param, write_passport(bundle, published=date(2026, 11, 29))


def compose_epsilon(mechanisms: list[dict[str, Any]]) -> float:
    squares = sum(one["count"] / one["noise_multiplier"] ** 2 for one in mechanisms)
    return exact_epsilon(math.sqrt(squares), 1e-4)


def test_the_passport_of_a_release_states_its_epsilon_unit_n_and_sites(
    made: tuple[Callable[[Path], Path], Path],
) -> None:
    kind, folder = made
    assert verify_bundle(folder / "bundle").passed
    statement = json.loads((folder / "bundle" / STATEMENT_FILE).read_text())
    entry = yaml.safe_load((folder / "registry.yaml").read_text())
    assert find_faults(entry) == []
    deployment = entry["deployment"]
    paid = deployment["privacy_loss"]["privacy_parameters"]
    trained = compose_epsilon(statement["mechanisms"])
    tests = [statement[name] for name in ("evaluation", "calibration") if statement.get(name)]
    tested = [one for block in tests for one in block["mechanisms"]]
    # Without split tables the sides' images were not compared, so a unit may pay on both.
    both = compose_epsilon([*statement["mechanisms"], *tested])
    assert paid == {"epsilon": pytest.approx(both, rel=1e-3), "delta": 1e-4}
    assert (both > 4 * trained) == (kind is of_patients), "test units pay more than training units"
    n, unit = (150, "one patient") if kind is of_patients else (300, "one training image")
    check_tokens(deployment["dp_variant"]["data_domain"], n)
    check_tokens(deployment["privacy_loss"]["privacy_unit"], unit)
    named = ["east, north and south"] * (kind is of_sites)
    check_tokens(deployment["deployment_model"]["actors"], *named)
    assert (deployment["deployment_model"]["actors"] == "") == (kind is not of_sites)
    (paper,) = yaml.safe_load((folder / "leaderboard.yaml").read_text())
    (claim,) = paper["claims"]
    assert claim["epsilon"] == pytest.approx(trained, rel=1e-3)
    assert claim["private_accuracy"].endswith("%") == (kind is not of_sites)


def test_another_reader_of_crates_finds_the_same(made: tuple[Callable[[Path], Path], Path]) -> None:
    """Needs the package rocrate, by the authors of the format."""
    rocrate = pytest.importorskip("rocrate.rocrate")
    kind, folder = made
    crate = rocrate.ROCrate(folder)
    assert crate.root_dataset["name"] == "first"
    files = {each.id for each in crate.data_entities if each.type == "File"}
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == there - {"ro-crate-metadata.json"}
    assert crate.get("#run")["instrument"]["name"] == "dpprobe"
    values = {one["name"]: one["value"] for one in crate.root_dataset["variableMeasured"]}
    assert values["n"] == (150 if kind is of_patients else 300)
    assert values.get("sites.names") == (["east", "north", "south"] if kind is of_sites else None)
    assert crate.root_dataset["license"]["name"].startswith("empty")


# Questions that readers have about each document, by the field with the answer.
ASKED = (
    *("promise", "delta", "unit", "composition", "sure", "spent", "limit", "choice", "assumption"),
    *("measured", "released", "audited", "sites", "engine_limits", "to_patients"),
)


def plain(text: str) -> str:
    """Returns a document's text in lower case, without HTML and Markdown marks."""
    text = html.unescape(re.sub(r"<[^>]+>", " ", text))
    return " ".join(re.sub(r"[\\*`]", "", text).lower().split()).removesuffix(".")


def test_documents_answer_the_same_questions_alike(
    made: tuple[Callable[[Path], Path], Path],
) -> None:
    folder = made[1]
    read = read_bundle(folder / "bundle")
    words, facts = list_fields(read)["words"], read.facts
    wanted = {name: words[name] for name in ASKED if words[name] is not None}
    wanted |= {"n": f"{read.statement['n']}", "backbone": facts.backbone.name}
    wanted |= {"head": facts.head.method, "classes": facts.class_names[0], "data": facts.dataset}
    for name in (CARD_FILE, PAGE_FILE, f"../{QUESTIONS_FILE}"):
        text = plain((folder / "bundle" / name).read_text(encoding="utf-8"))
        assert {key for key, value in wanted.items() if plain(value) not in text} == set(), name
        nobody = "empty: the bundle does not state it (bundle.json: card.intended_use)"
        assert "wrote down no intended use" in text or nobody in text
