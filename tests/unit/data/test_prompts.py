"""Prompts: what a text encoder reads for each class."""

from __future__ import annotations

import open_clip
import pytest

from dpprobe import resources
from dpprobe.data import prompts
from dpprobe.errors import ConfigError


def read(chosen: str, *words: str) -> list[str]:
    return [
        of_class[0] for of_class in prompts.make_sentences(prompts.read_templates(chosen), words)
    ]


def test_the_sentences_of_the_foundation_features_paper() -> None:
    assert read("simple", "airplane", "cat", "Apple", "8") == [
        "This is a picture of an airplane",
        "This is a picture of a cat",
        "This is a picture of an Apple",
        "This is a picture of a 8",
    ]
    assert read("mnist", "seven") == ["This is the number seven"]
    assert read("satellite", "forest") == ["This is a satellite image of forest"]
    assert read("xray", "healthy chest") == ["This is an x-ray of a healthy chest"]


def test_clips_own_templates_are_the_library_s() -> None:
    for name, library in (
        ("imagenet80", open_clip.OPENAI_IMAGENET_TEMPLATES),
        ("ensemble7", open_clip.SIMPLE_IMAGENET_TEMPLATES),
    ):
        (of_class,) = prompts.make_sentences(prompts.read_templates(name), ["owl"])
        assert of_class == [template("owl") for template in library]
    assert len(prompts.read_templates("imagenet80")) == 80
    assert len(prompts.read_templates("ensemble7")) == 7


def test_every_set_can_be_read() -> None:
    for name in resources.read_yaml("prompts.yaml"):
        prompts.check_prompts(name)
        assert all(
            "owl" in text
            for text in prompts.make_sentences(prompts.read_templates(name), ["owl"])[0]
        )


def test_own_templates() -> None:
    chosen = ("{a} {c} {{drawn}}", "{c}, {c}")
    prompts.check_prompts(chosen)
    assert prompts.make_sentences(prompts.read_templates(chosen), ["ox"]) == [
        ["an ox {drawn}", "ox, ox"]
    ]
    assert read("photo", "{c} of {a}") == ["a photo of a {c} of {a}."], "braces in a class stay"


def test_words_replace_names() -> None:
    assert prompts.name_classes(["AnnualCrop", "River"], {"AnnualCrop": "annual crop land"}) == (
        "annual crop land",
        "River",
    )
    assert prompts.name_classes(["aquarium_fish"], {}) == ("aquarium fish",)
    for names, of in ((["a", "_"], {}), (["a", "b"], {"b": "\u200b "})):
        with pytest.raises(ConfigError, match=f"no word for class '{names[1]}'"):
            prompts.name_classes(names, of)
    with pytest.raises(ConfigError, match="prompt_names: no class 'Rivers'; write 'River'"):
        prompts.name_classes(["AnnualCrop", "River"], {"Rivers": "a river"})


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("simpel", "prompts: no set 'simpel'; write one of: .*simple"),
        ("a photo of {c}", "no set 'a photo of {c}'; write a template as a list"),
        ((), "an empty list"),
        (("a photo",), "'a photo' has no {c}"),
        (("a {c:d}",), "'a {c:d}' has no {c}"),
        (("{c}, a {c:.3}",), "{c!:.3} is unknown"),
        (("{c!r}",), "'{c!r}' has no {c}"),
        (("{c} in {place}",), "{place} is unknown"),
        (("{c} {}",), "{} is unknown"),
        (("{c} {",), "write {c} in place of"),
    ],
)
def test_wrong_prompts(chosen: str | tuple[str, ...], message: str) -> None:
    for reader in (prompts.check_prompts, prompts.read_templates):
        with pytest.raises(ConfigError, match=message):
            reader(chosen)


def test_imagenet_has_words_of_its_own() -> None:
    words = prompts.name_classes([f"n{label}" for label in range(1000)], "imagenet")
    assert len(words) == 1000
    assert (words[0], words[999]) == ("tench", "toilet paper")
    with pytest.raises(ConfigError, match="imagenet names 1000 classes, but this dataset has 10"):
        prompts.name_classes([str(label) for label in range(10)], "imagenet")


def test_imagenet_s_words_go_by_wordnet_ids() -> None:
    names = [f"n{number:08d}" for number in range(1000)]
    assert prompts.name_classes(names, "imagenet")[0] == "tench"
    with pytest.raises(ConfigError, match="order of their WordNet ids"):
        prompts.name_classes(names[::-1], "imagenet")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("airplane", "an"), ("Owl", "an"), ("cat", "a"), ("hourglass", "an"), ("house", "a"),
        ("unicycle", "a"), ("umbrella", "an"), ("European fire salamander", "a"), ("", "a"),
        ("unidentified", "an"), ("uninhabited island", "an"), ("unicorn", "a"), ("onerous", "an"),
        ("one-way street", "a"), ("utility pole", "a"), ("usual", "a"), ("honour", "an"),
    ],
)  # fmt: skip
def test_articles(word: str, expected: str) -> None:
    assert prompts.choose_article(word) == expected
