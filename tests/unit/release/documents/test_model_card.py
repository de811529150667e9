"""The model card: metadata for the Hub's library, text for people, and escaping."""

from __future__ import annotations

from typing import Any

import pytest
from huggingface_hub import EvalResult, ModelCard

from dpprobe.release.bundle import CardFacts, StudentFacts
from dpprobe.release.documents.model_card import make_card
from tests.support.bundles import LEDGER, PRIORS
from tests.support.refusals import check_tokens
from tests.support.releases import (
    HOSTILE,
    Release,
    calibrated,
    example,
    following,
    measured,
    of_sites,
    pointed,
    watched,
    with_tested,
)
from tests.unit.release.parts.evidence.test_measure import EVIDENCE

RESNET = {
    "options": {"family": "timm", "model": "resnet50"},
    "architecture": "resnet50",
    "pretrained_tag": "a1_in1k",
    "trained": True,
}
FILE = {"checkpoint": "weights.safetensors", "weights_sha256": "0" * 64}
VECTORS = {"options": {"family": "external", "model": "clip-vit"}, "architecture": "clip-vit"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Returns a release of an image classifier without any measurements."""
    return example(tmp_path_factory.mktemp("card") / "v1")


def changed(
    release: Release,
    statement: dict[str, Any] | None = None,
    *,
    backbone: dict[str, Any] | None = None,
    head: dict[str, Any] | None = None,
    **facts: Any,
) -> Release:
    made, stated = release
    facts["backbone"] = made.backbone.model_copy(update=backbone or {})
    facts["head"] = made.head.model_copy(update=head or {})
    return made.model_copy(update=facts), with_tested({**stated, **(statement or {})})


def write(release: Release) -> ModelCard:
    """Returns the parsed card and checks that the Hub's library would write the same metadata."""
    text = make_card(*release)
    card = ModelCard(text)
    assert text.startswith(f"---\n{card.data.to_yaml()}\n---\n")
    return card


@pytest.mark.parametrize(
    ("license_", "keys"),
    [
        (None, {}),
        ("Apache-2.0", {"license": "apache-2.0"}),
        ("mit", {"license": "mit"}),
        ("CC BY 4.0", {"license": "other", "license_name": "CC BY 4.0"}),
        ("Our terms:\nask us", {"license": "other", "license_name": "Our terms: ask us"}),
        ("-x", {"license": "other", "license_name": "-x"}),
        ("é", {"license": "other", "license_name": "é"}),
    ],
)
def test_a_license_is_an_identifier_of_the_hub_or_another_with_a_name(
    plain: Release, license_: str | None, keys: dict[str, str]
) -> None:
    values = write(changed(plain, card=CardFacts(license=license_))).data.to_dict()
    assert {key: each for key, each in values.items() if key.startswith("license")} == keys


@pytest.mark.parametrize(
    ("metric", "hub", "name"),
    [
        ("accuracy", "accuracy", "Accuracy"),
        ("auc", "roc_auc", "AUC"),
        ("macro_accuracy", "balanced_accuracy", "Macro accuracy"),
    ],
)
def test_the_hub_finds_a_result_with_its_interval(
    plain: Release, metric: str, hub: str, name: str
) -> None:
    two: dict[str, Any] = {"class_names": ("a", "b")} if metric == "auc" else {}
    data: Any = write(changed(plain, {"evaluation": measured(metric, 0.8125)}, **two)).data
    (result,) = data.eval_results
    assert isinstance(result, EvalResult)
    assert data.to_dict()["metrics"] == [hub]
    assert (result.metric_type, result.metric_value) == (hub, 0.812)
    check_tokens(str(result.metric_name), name, "0.772 to 0.853")
    assert (result.dataset_name, result.dataset_type) == ("lesions (private)", "lesions")
    assert data.to_dict()["model-index"][0]["name"] == "lesions_v1"


@pytest.mark.parametrize("interval", [None, (0.1, 0.95)])
def test_the_hub_metadata_omit_missing_or_uninformative_results(
    plain: Release, interval: tuple[float, float] | None
) -> None:
    block = interval and {**measured(), "interval": [*interval]}
    values = write(changed(plain, {"evaluation": block})).data.to_dict()
    assert not values.keys() & {"metrics", "model-index"}
    assert values["library_name"] == "dpprobe"
    assert values["pipeline_tag"] == "image-classification"
    assert values["tags"][0] == "differential-privacy"


# For each change of a plain release: lines or words that the card then gains.
SAID: dict[str, tuple[dict[str, Any], list[str]]] = {
    "words": (
        {"card": CardFacts(intended_use="Sorting.", limits="At day.\n\nIn town.", contact="me")},
        ["\n\nSorting.\n", "\n\nAt day.\n\nIn town.\n", "## Contact\n\nme\n"],
    ),
    "result": (
        {"statement": {"evaluation": measured()}},
        [
            *("Accuracy 81.2%", "77.2 to 85.2%", "epsilon 0.2", "375 test images"),
            "|---|---|---|\n",
        ],
    ),
    "calibrated": (
        {"statement": {"calibration": calibrated()}},
        ["1000 private test images", "| 90% | ", "(#how-sure-it-is)"],
    ),
    "operating point": (
        {"statement": {"calibration": pointed()}},
        [
            "melanoma from a probability of 13.28%",
            "95.1% (95% CI 90.4% to 98.7%)",
            "90% at 97.5% confidence",
        ],
    ),
    "no operating point": (
        {"statement": {"calibration": pointed(found=False)}},
        ["no threshold of melanoma", "1000 test images are too few"],
    ),
    "watched": (
        {"statement": {"monitor": watched()}},
        ["1000 private test images", "--monitor"],
    ),
    "cohort": (
        {"statement": {"cohort": following()}},
        ["Cohort 2026-12", "12,000 images", r"lesions\_2026\_01"],
    ),
    "sites": ({"statement": {"sites": of_sites()}}, ["a, b and c", "X25519"]),
    "evidence": ({"statement": {"evidence": EVIDENCE}}, ["an audit attacked"]),
    "predecessor": (
        {"statement": {"predecessor": {"name": "lesions v0", "sha256": "ab" * 32}}},
        ["`lesions v0`", f"`{'ab' * 32}`"],
    ),
    "patients": (
        {"statement": {"patients": {"images": 5, "epsilon": 6.2003}}},
        ["5 training images", "epsilon 6.201"],
    ),
    "spent": (
        {"statement": {"ledger": LEDGER | {"releases": 4, "epsilon": 2.3, "exact": False}}},
        ["4 releases", "at most epsilon 2.3 at delta 1e-5"],
    ),
    "risk": (
        {"statement": {"risk_target": {"advantage": 0.3}, "mu": 0.77}},
        ["advantage 0.3 (mu 0.77)"],
    ),
    "auto": (
        {"statement": {"chosen_from": {"head": "newton", "rule": "auto rule 1"}}},
        ["`newton`", "auto rule 1"],
    ),
    "priors": (
        {"head": {"class_priors": tuple(PRIORS.tolist())}},
        ["naevus 70.00%, melanoma 25.00%, keratosis 5.00%"],
    ),
    "student": (
        {"head": {"student": StudentFacts(gain=41.3, threshold=38.0, used=True)}},
        ["This bundle has\nthe student.", "was 41.3;", "above 38.0,"],
    ),
    "no student": (
        {"head": {"student": StudentFacts(gain=-2.5, threshold=38.0, used=False)}},
        ["This bundle has\nthe trained head.", "-2.5;"],
    ),
    "labels": (
        {"multi_label": True},
        ["3 labels", "probability of each label"],
    ),
    "scores": ({"head": {"link": "none"}}, ["score of each class"]),
    "weights": (
        {"backbone": {"weights_sha256": "0" * 64}},
        ["`dpprobe export lesions_v1 --onnx model.onnx`"],
    ),
    "hub": (
        {"backbone": {"options": {"family": "timm", "model": "hf-hub:a/b"}, "trained": True}},
        [" --output predictions.csv --allow-hub\n", "(`a/b`)"],
    ),
    "timm": ({"backbone": RESNET}, ["(`timm/resnet50.a1_in1k`)"]),
    "file": (
        {"backbone": RESNET | FILE},
        [" --checkpoint WEIGHTS\n", "`weights.safetensors`", f"`{'0' * 64}`"],
    ),
    "imported": (
        {"backbone": {"options": {"family": "imported", "module": "nets:build"}}},
        [" --output predictions.csv --allow-module\n"],
    ),
    "vectors": (
        {
            "backbone": VECTORS,
            "statement": {
                "public_data": {
                    "trained": True,
                    "near_duplicate_check": "not_published",
                    "backbone_options": VECTORS["options"],
                }
            },
        },
        [
            "`clip-vit`",
            "predict lesions_v1 vectors.npy ",
            "64 numbers",
            "--onnx head.onnx`",
        ],
    ),
    "weak": (
        {
            "statement": {
                "epsilon_realised": 30.0,
                "selection": {"mean": 10, "repeated": ["gradients"], "trials": "geometric"},
            }
        },
        ["weak", "mean 10", "| 1% | 100% |"],
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_the_card_states_each_fact_of_a_release(plain: Release, case: str) -> None:
    changes, says = SAID[case]
    before, after = write(plain), write(changed(plain, **changes))
    for words in says:
        assert words in after.text, f"{case}: {words!r} is not there"
        assert words not in before.text, f"{case}: {words!r} is always there"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_changes_no_other_line_of_the_model_card(plain: Release, text: str) -> None:
    """A hostile text changes only the lines that show it, and no metadata but the license name."""

    def written(words: str) -> ModelCard:
        said = CardFacts(license=words, intended_use=words, limits=words, contact=words)
        named = changed(plain, {"evaluation": measured()}, class_names=(words, words), card=said)
        return write(named)

    harmless, hostile = written("Two words."), written(text)
    fixed = [line for line in harmless.text.splitlines() if line and "Two words" not in line]
    lines = [line for line in hostile.text.splitlines() if line]
    assert [line for line in lines if line in fixed] == fixed
    shown = [line for line in lines if line not in fixed]
    # Classes, use, limits and contact; all but classes split in two if the text has two paragraphs.
    assert 4 <= len(shown) <= 7
    for line in shown:
        assert "<" not in line
        assert not line.lstrip().startswith(("---", "- ", "# ", "1. ", "```"))
        assert "\u202e" not in line
    assert set(hostile.data.to_dict()) - set(harmless.data.to_dict()) <= {"license_name"}
