"""`init` writes only its own file, accepts any folder, and prints commands that run."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess

import pytest

from dpprobe.draft import init_command
from dpprobe.release.parts.evaluation import EvaluateOptions
from dpprobe.study.study import Study
from tests.unit.draft.conftest import Desk


@pytest.fixture
def folder(desk: Desk) -> Desk:
    desk.images("x/a", "x/b")
    return desk


def test_a_file_is_replaced_only_by_force(folder: Desk) -> None:
    folder.file("x.yaml", "mine")
    assert "x.yaml: the file exists" in folder.init("x")
    assert (folder.folder / "x.yaml").read_text() == "mine"
    folder.init("x", "--force")
    assert folder.study("x.yaml").study == "x"


def test_init_writes_no_study_among_the_images(folder: Desk) -> None:
    assert "the study would be among the images" in folder.init("x", "--output", "x/study.yaml")
    folder.monkeypatch.chdir(folder.folder / "x")
    assert "you are in the folder of the images" in folder.init(".")
    assert not list(folder.folder.rglob("*.yaml"))


def test_the_last_line_runs_what_was_written(folder: Desk) -> None:
    """The folder is not a clone; the run is planned but not executed."""
    printed = folder.init("x")
    program, *words = shlex.split(printed.splitlines()[-1].partition("run:  ")[2])
    assert program == "dpprobe"
    if not shutil.which(program):
        pytest.skip(f"no {program} on PATH")
    done = subprocess.run([program, *words, "-n"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "train_heads" in done.stdout + done.stderr
    shutil.rmtree(folder.folder / ".snakemake", ignore_errors=True)


@pytest.mark.parametrize("place", ["data", "data/lesions", "results", "2024", "null", "a\nb"])
def test_folders_of_any_name_become_a_study(desk: Desk, place: str) -> None:
    """Also works for folders that studies write, and names with line breaks or a YAML meaning."""
    desk.images(f"{place}/a", "elsewhere/b", count=30)
    (desk.folder / place / "b").symlink_to(
        "/".join([".."] * len(place.split("/")) + ["elsewhere/b"])
    )
    assert "60 images, 2 classes" in desk.init(place, "--output", "x.yaml")
    study = desk.study("x.yaml")
    assert [dataset.count_classes() for dataset in study.datasets.values()] == [2]
    assert not any(each.startswith(f"{place}/") for each in (study.results_dir, study.data_dir))
    (desk.folder / place / "a" / "up").symlink_to("..")
    assert "remove the link" in desk.init(place, "--force")


@pytest.mark.parametrize("rare", [4, 40])
def test_all_that_is_commented_out_can_be_taken(desk: Desk, rare: int) -> None:
    desk.images("x/a", count=40)
    desk.images("x/b", count=rare)
    printed = desk.init("x")
    text = (desk.folder / "x.yaml").read_text()
    assert "No epsilon covers the choice" in " ".join(text.replace("#", "").split())
    assert ("gives rare classes equal weight" in printed) == (rare < 40), "told if it is needed"
    drafted, study = desk.study("x.yaml"), taken(desk, "x.yaml")
    assert list(study.backbones) == [*drafted.backbones, "vit"]
    assert study.methods["balanced"].balanced  # type: ignore[attr-defined]
    assert study.releases["x_v1"].block(EvaluateOptions)


def taken(desk: Desk, file: str) -> Study:
    """Returns the study after the comment signs of all entries are removed."""
    text = (desk.folder / file).read_text()
    entry = r"(?m)^( *)# (\w+:(?: #.*)?(?:\n\1#   .*)+)"
    text = re.sub(entry, lambda m: re.sub(rf"(?m)^{m[1]}# ", m[1], m[0]), text)
    (desk.folder / file).write_text(text)
    desk.images("public/similar_images")
    return desk.study(file)


@pytest.mark.parametrize("classes", [2, 3])
def test_no_label_moves_what_a_release_publishes(desk: Desk, classes: int) -> None:
    """An extra image changes the metric of the tables, which is not part of a bundle."""
    written = {}
    for count in (24, 25):
        desk.images(*(f"{count}/x/{name}" for name in "abc"[: classes - 1]))
        desk.images(f"{count}/x/d", count=count)
        desk.init(f"{count}/x", "--output", f"{count}.yaml")
        written[count] = taken(desk, f"{count}.yaml").releases["x_v1"]
    assert [desk.study(f"{count}.yaml").datasets["x"].metric for count in written] == [
        None,
        "macro_accuracy",
    ]
    assert written[24] == written[25]
    evaluate = written[25].block(EvaluateOptions)
    assert evaluate is not None
    assert evaluate.metric == "macro_accuracy"
    text = (desk.folder / "25.yaml").read_text()
    assert "The metric does not change a release" in " ".join(text.replace("#", "").split())
    assert written[25].test_metric == "macro_accuracy", "which `auto` follows, in both"


@pytest.mark.parametrize("name", ["vectors.npy", "v.npz", "notes.safetensors", "cells.h5ad"])
def test_files_of_vectors_lead_to_their_source(desk: Desk, name: str) -> None:
    desk.file(name, "vectors")
    said = desk.init(name)
    assert "`source: embeddings`" in said
    assert f"`train: {name}`" in said
    assert "docs/embeddings.md" in said


@pytest.mark.parametrize("words", ["x/ --output studies/deep/er.yml", "~/x --output b c.yaml"])
def test_the_command_in_the_file_writes_it_again(folder: Desk, words: str) -> None:
    """Works with paths in the home folder, with a missing output folder, and repeatedly."""
    folder.monkeypatch.setenv("HOME", str(folder.folder))
    place, option, output = words.split(" ", 2)
    for file in ("x/a/more.jpg", "workflow/schemas/study.schema.json"):
        folder.file(file)
    assert (
        folder.init(place, option, output).splitlines()[0]
        == f"{place.rstrip('/')}: 25 images, 2 classes"
    )
    written = (folder.folder / output).read_text()
    schema, _, _, command, _, run, *_ = written.splitlines()
    asked = shlex.split(command.removeprefix("# "))
    assert asked == ["dpprobe", "init", place, option, output]
    assert shlex.split(run.removeprefix("# "))[-2:] == ["--configfile", output]
    named = (folder.folder / output).parent / schema.partition("$schema=")[2]
    assert named.samefile(folder.folder / "workflow/schemas/study.schema.json")
    folder.init(*asked[2:], "--force")
    assert (folder.folder / output).read_text() == written


def test_the_command_has_each_option_that_was_given() -> None:
    parser = argparse.ArgumentParser()
    init_command.add_command(parser.add_subparsers())
    given = ["--label k", "--image i", "--patient p", "--root r", "--checkpoint w", "--model m"]
    given.append("--size 98")
    words = ["init", "t.csv", *" ".join(given).split(), "--output", "o.yaml"]
    program, *command = init_command.list_words(parser.parse_args(words))
    assert program == "dpprobe"
    assert parser.parse_args(command) == parser.parse_args(words)
