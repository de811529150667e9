"""Studies drafted from folders of images."""

from __future__ import annotations

import re

import pytest

from dpprobe.data.options import compute_imbalance
from dpprobe.draft.seen_dataset import Seen
from dpprobe.release.parts.evaluation import EvaluateOptions
from dpprobe.study.study import Study
from tests.unit.draft.conftest import Desk


@pytest.mark.parametrize("place", ["data", "data/lesions", "results", "2024", "null", "a\nb"])
def test_folders_of_any_name_become_a_study(desk: Desk, place: str) -> None:
    """Also folders in which studies write, names that YAML reads as no text, and line breaks."""
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


@pytest.mark.parametrize(("classes", "metric"), [(2, "auc"), (3, "macro_accuracy")])
def test_unequal_classes_change_the_metric_and_leave_no_count_in_the_file(
    desk: Desk, classes: int, metric: str
) -> None:
    desk.images(*(f"x/{name}" for name in "ab"[: classes - 1]), count=347)
    desk.images("x/malignant", count=31)
    printed = desk.init("x")
    words = {"auc": "AUC", "macro_accuracy": "macro accuracy"}[metric]
    assert f"imbalance:   11.2 to 1; metric: {words}, because always predicting a " in printed
    assert "malignant         31 images:" in printed
    assert "test  (the smallest)" in printed
    assert desk.study("x.yaml").datasets["x"].metric == metric
    text = (desk.folder / "x.yaml").read_text()
    assert not any(number in text for number in ("347", "31", "378", "91.8", "11.2"))


@pytest.mark.parametrize("rare", [4, 40])
def test_all_that_is_commented_out_can_be_taken(desk: Desk, rare: int) -> None:
    desk.images("x/a", count=40)
    desk.images("x/b", count=rare)
    printed = desk.init("x")
    text = (desk.folder / "x.yaml").read_text()
    assert "No epsilon covers the choice" in " ".join(text.replace("#", "").split())
    assert ("`balanced: true`" in printed) == (rare < 40), "told of only where it is needed"
    drafted, study = desk.study("x.yaml"), taken(desk, "x.yaml")
    assert list(study.backbones) == [*drafted.backbones, "vit"]
    assert study.methods["balanced"].balanced  # type: ignore[attr-defined]
    assert study.releases["x_v1"].block(EvaluateOptions)


def test_each_draft_has_results_of_its_own_and_one_ledger(desk: Desk) -> None:
    desk.images("images/x/a", "images/x/b")
    desk.init("images/x")
    desk.init("images/x", "--output", "X-2.yaml")
    desk.init("images/x", "--output", "24.yaml")
    studies = [desk.study(name) for name in ("x.yaml", "X-2.yaml", "24.yaml")]
    assert [study.study for study in studies] == ["x", "x_2", "24"]
    assert [study.results_dir for study in studies] == ["results/x", "results/x_2", "results/24"]
    assert {study.data_dir for study in studies} == {"data/x"}
    assert {name for study in studies for name in study.datasets} == {"x"}


def taken(desk: Desk, file: str) -> Study:
    """A study once the comment of each entry is taken away."""
    text = (desk.folder / file).read_text()
    entry = r"(?m)^( *)# (\w+:(?: #.*)?(?:\n\1#   .*)+)"
    text = re.sub(entry, lambda m: re.sub(rf"(?m)^{m[1]}# ", m[1], m[0]), text)
    (desk.folder / file).write_text(text)
    return desk.study(file)


@pytest.mark.parametrize("classes", [2, 3])
def test_no_label_moves_what_a_release_publishes(desk: Desk, classes: int) -> None:
    """One image more or less changes the metric of tables, which is no part of a bundle."""
    written = {}
    for count in (24, 25):
        desk.images(*(f"{count}/x/{name}" for name in "abc"[: classes - 1]))
        desk.images(f"{count}/x/d", count=count)
        desk.init(f"{count}/x", "--output", f"{count}.yaml")
        written[count] = taken(desk, f"{count}.yaml").releases["x_v1"]
    assert [desk.study(f"{count}.yaml").datasets["x"].metric for count in written] == [
        None, "auc" if classes == 2 else "macro_accuracy",
    ]  # fmt: skip
    assert written[24] == written[25]
    evaluate = written[25].block(EvaluateOptions)
    assert evaluate is not None
    assert evaluate.metric == "macro_accuracy"
    text = (desk.folder / "25.yaml").read_text()
    assert "neither training nor a release" in " ".join(text.replace("#", "").split())


def test_an_empty_class_counts_as_tables_count_it() -> None:
    counts = {"a": 30, "b": 15, "c": 0}
    seen = Seen(place="x", keys={}, counts=counts, images=45)
    assert seen.imbalance == compute_imbalance(tuple(counts.values())) == 2
    assert not seen.is_imbalanced


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "x: no such folder or file; correct the path"),
        (["x/a/0.jpg", "x/b/caf\udce9.jpg"], "x/b: the name b'caf\\xe9.jpg' is not UTF-8"),
        (["x/a/notes.txt", "x/b/notes.txt"], "x: no image"),
        (["x/0.jpg", "x/1.jpg"], "x: 2 images but no class folder; put each image into a folder"),
        (["x/0.jpg", "x/a/1.jpg", "x/b/2.jpg"], "x: 1 images beside the class folders"),
        (["x/in/a/1.jpg", "x/in/b/1.jpg"], "x: only one folder, in, which contains 2 folders"),
        (["x/a/1.jpg", "x/b/1.jpg", "x/list.csv"], "run `dpprobe init x/list.csv`"),
        (["x/train/a/1.jpg", "x/train/b/1.jpg"], "x has train/ but no test/"),
    ],
)
def test_a_folder_of_another_layout_ends_it_with_a_line(
    paths: list[str], message: str, desk: Desk
) -> None:
    for path in paths:
        desk.file(path)
    error = desk.init("x")
    assert error.startswith("dpprobe: ")
    assert message in error
    assert error.count("\n") == 0
    assert not list(desk.folder.glob("*.yaml"))


@pytest.mark.parametrize("place", ["lesions", "lesions/train", "lesions/train/000.tar"])
def test_shards_are_left_to_a_person(desk: Desk, place: str) -> None:
    desk.file("lesions/train/000.tar")
    error = desk.init(place)
    assert "write the study by hand with `source: webdataset` (docs/your-own-data.md)" in error
    assert "\n" not in error
