"""The model card: what the Hub reads of it, what people read, and that nothing breaks out of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from dpprobe.release.bundle import BundleFacts, CardFacts
from dpprobe.release.model_card import CLASSES_SHOWN, write_card
from tests.support.releases import HOSTILE, Release, example, long_release, measured

RESNET = {"family": "timm", "model": "resnet50"}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return example(tmp_path_factory.mktemp("release") / "bundle")


def card(folder: Path, facts: BundleFacts, statement: dict[str, Any]) -> ModelCard:
    """The card as the Hub's library reads it."""
    write_card(folder, facts, statement)
    return ModelCard((folder / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Apache-2.0", {"license": "apache-2.0"}),
        ("Our terms:\nask us", {"license": "other", "license_name": "Our terms: ask us"}),
    ],
)
def test_the_hub_reads_what_the_model_is(
    written: str, read: dict[str, str], tmp_path: Path, release: Release
) -> None:
    facts, statement = release
    licensed = facts.model_copy(update={"card": CardFacts(license=written)})
    assert card(tmp_path, licensed, statement).data.to_dict() == read | {
        "library_name": "dpprobe",
        "pipeline_tag": "image-classification",
        "tags": ["differential-privacy", "dpprobe", "frozen-features"],
    }


@pytest.mark.parametrize(("metric", "name"), [("accuracy", "accuracy"), ("auc", "roc_auc")])
def test_the_hub_reads_an_evaluation(
    tmp_path: Path, release: Release, metric: str, name: str
) -> None:
    facts, statement = release
    data: Any = card(tmp_path, facts, {**statement, "evaluation": measured(metric)}).data
    (result,) = data.eval_results or []
    assert (result.metric_type, result.metric_value) == (name, 0.812)
    assert (result.metric_name or "").endswith("measured with noise (95% CI 0.772 to 0.853)")
    assert data.to_dict()["metrics"] == [name]


@pytest.mark.parametrize(
    ("changes", "base"),
    [
        ({"options": RESNET, "architecture": "resnet50", "pretrained_tag": "a1_in1k"},
         "timm/resnet50.a1_in1k"),
        ({"options": {"family": "open_clip", "model": "hf-hub:laion/clip"}}, "laion/clip"),
        ({"options": {"family": "timm", "model": "hf_hub:a/b"}}, "a/b"),
        ({"options": {"family": "timm", "model": "local-dir:a/b"}}, None),
        ({"options": {"family": "timm", "model": "hf-hub:a/b"}, "trained": False}, None),
        ({"options": RESNET, "architecture": "resnet50", "checkpoint": "weights.safetensors",
          "weights_sha256": "0" * 64}, None),
    ],
)  # fmt: skip
def test_the_base_model_is_a_name_of_the_hub(
    tmp_path: Path, release: Release, changes: dict[str, Any], base: str | None
) -> None:
    facts, statement = release
    backbone = facts.backbone.model_copy(update={"trained": True} | changes)
    written = card(tmp_path, facts.model_copy(update={"backbone": backbone}), statement)
    assert written.data.to_dict().get("base_model") == base
    assert ("--checkpoint WEIGHTS" in written.text) == (backbone.checkpoint is not None)
    assert ("0" * 64 in written.text) == (backbone.checkpoint is not None)


@pytest.mark.parametrize("weights", [None, "0" * 64])
def test_the_export_is_told_of_a_backbone_that_can_be_exported(
    tmp_path: Path, release: Release, weights: str | None
) -> None:
    """A backbone without weights, such as pixels, is no network: `export_onnx` refuses it."""
    facts, statement = release
    assert facts.backbone.options["family"] == "pixels"
    assert facts.backbone.weights_sha256 is None
    backbone = facts.backbone.model_copy(update={"weights_sha256": weights})
    written = card(tmp_path, facts.model_copy(update={"backbone": backbone}), statement)
    assert ("dpprobe export" in written.text) == (weights is not None)


def test_people_read_promise_attack_limits_and_ledger(tmp_path: Path, release: Release) -> None:
    facts, statement = release
    text = card(tmp_path, facts, {**statement, "evaluation": measured()}).text
    for fact in (
        "Not a medical device",
        "dpprobe predict lesions_v1 IMAGES",
        "dpprobe verify .",
        statement["promise"],
        statement["choice"]["words"],
        "| 1% | 2% | 1.2% |",
        "right at most 55.4% of the time",
        "Accuracy 81.2% (95% CI 77.2 to 85.2%)",
    ):
        assert fact in text
    for item in [*statement["not_covered"], *statement["public"]]:
        assert item[1:].replace("`", "") in text


def test_it_names_the_release_that_it_replaces(tmp_path: Path, release: Release) -> None:
    facts, statement = release
    named = {"name": "lesions v0", "sha256": "0123456789abcdef" * 4}
    text = card(tmp_path, facts, {**statement, "predecessor": named}).text
    line = "This release replaces `lesions v0`, whose `SHA256SUMS` has the SHA-256 "
    assert f"\n{line}`{named['sha256']}`.\n" in text
    assert "replaces" not in card(tmp_path, facts, statement).text


def test_a_persons_words_replace_the_defaults(tmp_path: Path, release: Release) -> None:
    facts, statement = release
    words = CardFacts(intended_use="Sorting.", limits="Not at night.\n\nNot abroad.", contact="me")
    text = card(tmp_path, facts.model_copy(update={"card": words}), statement).text
    assert "## Intended use\n\nSorting.\n" in text
    assert "## Limits\n\nNot at night.\n\nNot abroad.\n" in text
    assert text.endswith("## Contact\n\nme\n")
    assert "medical device" not in text


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_breaks_out_of_it(tmp_path: Path, release: Release, text: str) -> None:
    """The same lines as of a harmless text, but for those that show it; nothing else to the Hub."""
    facts, statement = release

    def written(words: str) -> ModelCard:
        named = facts.model_copy(
            update={
                "class_names": (words, words),
                "card": CardFacts(license=words, intended_use=words, limits=words, contact=words),
            }
        )
        return card(tmp_path, named, {**statement, "evaluation": measured()})

    harmless, hostile = written("Two words."), written(text)
    fixed = [line for line in harmless.text.splitlines() if line and "Two words" not in line]
    lines = [line for line in hostile.text.splitlines() if line]
    assert [line for line in lines if line in fixed] == fixed
    shown = [line for line in lines if line not in fixed]
    # Classes, use, limits and contact; all but the first in paragraphs where the text has two.
    assert 4 <= len(shown) <= 7
    for line in shown:
        assert "<" not in line
        assert not line.lstrip().startswith(("---", "- ", "# ", "1. ", "```"))
        assert "\u202e" not in line
    assert set(hostile.data.to_dict()) - set(harmless.data.to_dict()) <= {"license_name"}


def test_long_lists_of_classes_are_cut(tmp_path: Path, release: Release) -> None:
    text = card(tmp_path, *long_release(release)).text
    assert f"and {1000 - CLASSES_SHOWN} more, in `bundle.json`" in text
    assert "one patient (all of their training images together)" in text
