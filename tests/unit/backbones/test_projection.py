"""Feature dimensions of families without a network, before and after projection."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import ConfigError
from tests.support.backbones import load, noise, run


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"family": "pixels", "project": 9},
            "project: 9: the number of features is not known",
        ),
        ({"family": "pixels", "size": 2, "project": 9}, "project: 9 must be below .*features, 4;"),
        ({"family": "pixels", "size": 3, "project": 9}, "project: 9 must be below .*features, 9;"),
        ({"family": "pixels", "size": 4, "project": 9}, None),
        ({"family": "pixels", "size": 2, "project": 11, "color": "rgb"}, None),
        ({"family": "scattering", "size": 8, "project": 324}, "324 must be below .*features, 324;"),
        ({"family": "scattering", "size": 8, "project": 323}, None),
        ({"family": "scattering", "size": 7, "J": 3}, r"size: 7 is smaller than 2\^J = 8; set a"),
        ({"family": "scattering", "size": 8, "J": 3}, None),
    ],
)
def test_a_projection_makes_fewer_features(values: dict[str, Any], said: str | None) -> None:
    options = backbone_options(values)
    if said is None:
        options.check_files()
        assert options.computed_dimension == values.get("project", 217)  # 1 + 3 * 8 + 3 * 8^2
    else:
        with pytest.raises(ConfigError, match=said):
            options.check_files()


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        ("pixels", {"std": 0}, "std: 0: must be a number above 0"),
        ("pixels", {"mean": float("inf")}, "mean: inf: "),
        ("pixels", {"size": 0}, "size: 0: must be a number of 1 or more"),
        ("pixels", {"project": 0}, "project: 0: must be a number of 1 or more"),
        ("scattering", {"J": 9}, "J: 9: must be a number of 8 or less"),
        ("scattering", {"J": 0}, "J: 0: must be a number of 1 or more"),
        ("scattering", {"L": 0}, "L: 0: must be a number of 1 or more"),
        ("scattering", {"size": 1}, "size: 1: must be a number of 2 or more"),
    ],
)
def test_numbers_out_of_range_are_refused(family: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        backbone_options({"family": family} | change)


def assert_computed(**values: Any) -> None:
    """Checks that planning computes the dimension that the backbone gives."""
    options, backbone = backbone_options(values), load(**values)
    options.check_files()
    for size in ((9, 5), (40, 40)):
        features = run(backbone, noise(size), noise(size, seed=1))
        assert features.shape == (2, options.computed_dimension), values
    assert backbone.dimension == options.computed_dimension


colours = st.sampled_from(["gray", "rgb"])


@given(size=st.integers(2, 12), color=colours, project=st.sampled_from([None, 3]))
def test_pixels_are_as_many_as_planned(size: int, color: str, project: int | None) -> None:
    assert_computed(family="pixels", size=size, color=color, project=project)


@pytest.mark.parametrize(
    "values",
    [
        {"size": 8},
        {"size": 8, "J": 1, "L": 4, "color": "rgb"},
        {"size": 36, "J": 3, "L": 4},
        {"size": 7, "J": 1},
        {"size": 28, "L": 3},
        {"size": 8, "project": 5},
    ],
)
def test_scattering_coefficients_are_as_many_as_planned(values: dict[str, Any]) -> None:
    assert_computed(family="scattering", **values)


@pytest.mark.parametrize("family", ["pixels", "scattering"])
def test_only_a_written_projection_is_part_of_the_features(family: str) -> None:
    """Features of older versions, which had no projection, stay valid."""
    plain = backbone_options({"family": family, "size": 8}).extraction_params()
    assert "project" not in plain
    projected = backbone_options({"family": family, "size": 8, "project": 5}).extraction_params()
    assert projected == plain | {"project": 5}
    constants = {"mean": 0.0, "std": 1.0} if family == "pixels" else {}
    recorded = {"color": "gray", "size": 8, "interpolation": "bicubic"} | constants
    assert load(family=family, size=8).preprocessing == recorded
