"""A draft's text is valid YAML with the intended values, comments, delta and a future release."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from dpprobe.draft.study_text import format_number, write_entry
from dpprobe.errors import ConfigError
from dpprobe.privacy.limits import choose_delta
from tests.unit.draft.conftest import Desk, lesions

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)
scalars = st.one_of(texts, st.booleans(), st.integers(), st.floats(allow_nan=False))


@given(
    key=texts,
    value=st.one_of(
        scalars, st.lists(texts, max_size=4), st.dictionaries(texts, scalars, min_size=1)
    ),
    indent=st.sampled_from([0, 4]),
)
def test_an_entry_is_read_as_it_was_given(key: str, value: Any, indent: int) -> None:
    """Values survive at each indentation, and the keys of a mapping may be any text."""
    lines = write_entry("key", {key: value} if isinstance(value, str) else value, indent=indent)
    assert all(line.startswith(" " * indent) for line in lines)
    text = "".join(f"{line}\n" for line in lines)
    wanted = {key: value} if isinstance(value, str) else value
    assert yaml.safe_load(f"top:\n  - 0\n{text}" if indent == 0 else f"top:\n{text}") in (
        {"top": [0], "key": wanted},
        {"top": {"key": wanted}},
    )


@given(st.integers(0, 10**9))
def test_delta_is_the_largest_power_of_ten_below_a_tenth_of_one_over_n(n: int) -> None:
    delta = choose_delta(n)
    power = round(-math.log10(delta))
    assert delta == pytest.approx(10.0**-power, rel=1e-12)
    assert power >= 5
    assert 10**power >= 10 * n
    assert power == 5 or 10 ** (power - 1) < 10 * n
    read = yaml.safe_load(format_number(delta))
    assert isinstance(read, float)
    assert read == pytest.approx(delta, rel=1e-12)


def test_delta_follows_from_the_training_patients_not_from_the_images(desk: Desk) -> None:
    """About 4,000 of the 5,005 patients, who have 10,010 images, are training patients."""
    desk.table("files.csv", lesions(10_010))
    desk.file("files/0.jpg")
    assert desk.draft("files.csv").study.delta == 1e-5


@pytest.mark.parametrize(
    ("classes", "metric"), [(2, "macro_accuracy"), (10, "macro_accuracy"), (11, "accuracy")]
)
def test_a_release_has_a_result_with_the_test_images_that_are_named(
    desk: Desk, classes: int, metric: str
) -> None:
    """This holds in 95% of releases; each class count has noise sqrt(2) / mu (Dong et al. 2022)."""
    desk.images(*(f"x/c{number}" for number in range(classes)), count=20)
    text = desk.draft("x").text
    assert f"metric: {metric}}}" in text
    named = re.search(r"with (\d+) test images in each class", text)
    if metric == "accuracy":
        assert named is None
        return

    def find_delta(mu: float) -> float:
        return float(norm.cdf(-1 / mu + mu / 2) - math.e * norm.cdf(-1 / mu - mu / 2))

    deviation = math.sqrt(2) / brentq(lambda mu: find_delta(mu) - 1e-5, 0.01, 1, xtol=1e-12)
    assert named
    chances = [norm.cdf((int(named[1]) + more) / deviation - 4) ** classes for more in (-1, 0)]
    assert chances[0] < 0.95 <= chances[1], f"{named[1]} images of a class: {chances}"


def test_results_and_data_are_outside_the_images(desk: Desk) -> None:
    """Studies of the same folder share their data, but not their results."""
    desk.images("data/lesions/a", "data/lesions/b", count=30)
    study = desk.draft("data/lesions").study
    assert (study.results_dir, study.data_dir) == ("results/study", "dpprobe_data/lesions")
    desk.images("results/a", "results/b", count=30)
    drafted = desk.draft("results")
    assert (drafted.study.study, [*drafted.study.datasets]) == ("study", ["results"])
    assert drafted.study.results_dir == "dpprobe_results/study"
    assert "share one data_dir" in drafted.text
    desk.images("study/a", "study/b", count=30)
    assert "share one data_dir" not in desk.draft("study").text


@pytest.mark.parametrize("place", ["lesions", "similar_images"])
@pytest.mark.parametrize("balanced", [True, False])
def test_the_public_images_that_a_comment_declares_are_accepted(
    desk: Desk, place: str, balanced: bool
) -> None:
    """`Desk.study` refuses the same studies as `dpprobe check`."""
    desk.images(f"{place}/a", count=30 if balanced else 90)
    desk.images(f"{place}/b", count=30)
    drafted = desk.draft(place)
    assert "`public_datasets` in study.yaml" in drafted.said
    assert not drafted.study.public_datasets
    (block,) = re.findall(r"(?m)^# public_datasets:\n(?:# .*\n)+", drafted.text)
    text = drafted.text.replace(block, re.sub("(?m)^# ", "", block))
    text = re.sub("(?m)^    # public: ", "    public: ", text)
    desk.file("study.yaml", text)
    ((name, public),) = yaml.safe_load(text)["public_datasets"].items()
    with pytest.raises(ConfigError, match=public["path"]):
        desk.study("study.yaml")
    desk.images(f"{public['path']}/films")
    study = desk.study("study.yaml")
    assert list(study.public_datasets) == [name] != list(study.datasets)
    (file,) = study.methods["auto"].public_files().values()
    assert f"features/{name}/" in file
    assert desk.run("check", "study.yaml").startswith("study.yaml: 6 cells; ")
