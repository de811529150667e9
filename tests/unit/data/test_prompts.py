"""Prompts: what a text encoder reads for each class."""

from __future__ import annotations

import open_clip

from dpprobe import resources
from dpprobe.data import prompts


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
