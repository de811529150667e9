"""Prompts for a text encoder: templates, articles and the words for classes."""

from __future__ import annotations

from typing import Any

import open_clip
import pytest

from dpprobe import project_files
from dpprobe.data import prompts
from dpprobe.errors import ConfigError


def test_a_sentence_for_each_template_and_class() -> None:
    templates = prompts.read_templates(("{a} {c} {{drawn}}", "{c}, {c}"))
    assert prompts.make_sentences(templates, ["ox", "{c} of {a}", "owl"]) == [
        ["an ox {drawn}", "ox, ox"],
        ["a {c} of {a} {drawn}", "{c} of {a}, {c} of {a}"],
        ["an owl {drawn}", "owl, owl"],
    ]


@pytest.mark.parametrize("name", project_files.read_yaml("prompts.yaml"))
def test_every_template_of_a_named_prompt_set_contains_the_class_name(name: str) -> None:
    prompts.check_prompts(name)
    templates = prompts.read_templates(name)
    assert len(set(templates)) == len(templates) > 0
    (sentences,) = prompts.make_sentences(templates, ["quokka"])
    assert all("quokka" in each and "{" not in each for each in sentences)
    prompts.check_prompts(templates)


def test_clips_own_templates_are_the_library_s() -> None:
    for name, library in (
        ("imagenet80", open_clip.OPENAI_IMAGENET_TEMPLATES),
        ("ensemble7", open_clip.SIMPLE_IMAGENET_TEMPLATES),
    ):
        (of_class,) = prompts.make_sentences(prompts.read_templates(name), ["owl"])
        assert of_class == [template("owl") for template in library]
    assert len(prompts.read_templates("imagenet80")) == 80
    assert len(prompts.read_templates("ensemble7")) == 7


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ("simpel", "prompts: no set 'simpel'; choose one of: .*simple"),
        (
            "a photo of {c}",
            r"no set 'a photo of {c}'; write a template as a list, \[...\]; choose one",
        ),
        ((), "prompts: an empty list; write a template with {c} in place of the class name"),
        (("a photo",), "prompts: 'a photo' has no {c}; write {c}"),
        (("{a} thing",), "has no {c}"),
        (("{c}", "a photo"), "'a photo' has no {c}"),
        (("a {c:d}",), "'a {c:d}' has no {c}"),
        (("{c}, a {c:.3}",), "{c!:.3} is unknown; write {c}"),
        (("{c!r}",), "'{c!r}' has no {c}"),
        (("{c} in {place}",), "{place} is unknown; write {c} in place of the class name, {a} in"),
        (("{c} {}",), "{} is unknown"),
        (("{c} {",), "prompts: '{c} {': .*; write {c} in place of the class name"),
    ],
)
def test_prompts_that_are_refused(chosen: Any, message: str) -> None:
    pattern = message.replace("{", r"\{").replace("}", r"\}")
    for check in (prompts.check_prompts, prompts.read_templates):
        with pytest.raises(ConfigError, match=pattern):
            check(chosen)


def test_classes_have_their_names_or_the_given_words() -> None:
    named = prompts.name_classes(["AnnualCrop", "River_bed"], {"AnnualCrop": "annual crop land"})
    assert named == ("annual crop land", "River bed")
    assert prompts.name_classes(["b", "a"], {}) == ("b", "a")


IDS = [f"n{number:08d}" for number in range(1000)]


@pytest.mark.parametrize(
    ("names", "words", "message"),
    [
        (["a", "_"], {}, "prompt_names: no word for class '_'; use a visible word"),
        (["a", "b"], {"b": "\u200b "}, "no word for class 'b'"),
        (["AnnualCrop", "River"], {"Rivers": "x"}, "no class 'Rivers'; write 'River'"),
        (["a", "b"], {"q": "x", "z": "y"}, "no class 'q'; remove it"),
        (["a"], "imagenet", "imagenet names 1000 classes, but this dataset has 1; write a map"),
        (IDS[::-1], "imagenet", "in the order of their WordNet ids, but the dataset has another"),
    ],
)
def test_words_that_are_refused(names: list[str], words: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prompts.name_classes(names, words)


def test_imagenet_s_words_are_the_library_s() -> None:
    """Only names that are WordNet ids must be in the library's order."""
    for names in (IDS, [f"c{n}" for n in range(1000)][::-1], [*IDS[:0:-1], f"{IDS[0]}x"]):
        assert prompts.name_classes(names, "imagenet") == tuple(open_clip.IMAGENET_CLASSNAMES)
