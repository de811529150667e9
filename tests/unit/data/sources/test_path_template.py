"""Path templates are formatted as Python does, without attributes, indices and nested fields."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data.sources.path_template import SpreadFolders, fill_template, template_parts
from dpprobe.errors import ConfigError, DataError

TEMPLATES = ["{a}", "x{a:.2}/{b c:>3}", "{{}}", "", "{a}{a:}-{b c:<5}x", "p/{b c:.1}{{{a}}}"]


@given(st.sampled_from(TEMPLATES), st.text(max_size=6), st.text(max_size=6))
def test_a_template_is_filled_as_python_formats(template: str, one: str, other: str) -> None:
    values = {"a": one, "b c": other}
    filled = fill_template(template_parts(template), values)
    assert filled == template.format_map(values), template


def test_a_column_s_name_is_everything_before_its_format() -> None:
    parts = template_parts("{a.b}{c[0]}")
    assert [column for _, column, _ in parts] == ["a.b", "c[0]"]
    assert fill_template(parts, {"a.b": "1", "c[0]": "2"}) == "12"


@pytest.mark.parametrize("template", ["{a}*", "x*{a}", "x/y*{a}/b", "**/{a}", "{a}/*/{b}", "*"])
def test_a_misplaced_star_in_a_path_template_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"stands for a part of the name of a folder before"):
        template_parts(template)


def test_a_file_is_found_in_the_folder_that_has_it(tmp_path: Path) -> None:
    for file in (
        "p{1}[/a.jpg",
        "p{2}[/b/c.jpg",
        "p{2}[/d.jpg",
        "p{1}[/d.jpg",
        "p3[",
        "q{1}[/a.jpg",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    template = "p{{*}}[/{image}.jpg"
    folders = SpreadFolders.find(tmp_path, template)
    assert folders is not None
    parts = template_parts(template)
    found = {}
    for image in ("a", "b/c", "none", "d"):
        path = fill_template(parts, {"image": image})
        if image == "d":
            with pytest.raises(
                DataError, match=r"^row 1: d\.jpg is in .*p.1.\[ and in .*p.2.\[; kee"
            ):
                folders.find_file(path, "row 1")
        else:
            found[image] = folders.find_file(path, "row 1")
    first = tmp_path / "p{1}["
    assert found == {
        "a": first / "a.jpg",
        "b/c": tmp_path / "p{2}[/b/c.jpg",
        "none": first / "none.jpg",
    }
    assert SpreadFolders.find(tmp_path, "p/{image}.jpg") is None
    with pytest.raises(ConfigError, match=r"path_template: z\*/{image}: no folder z\*/ under root"):
        SpreadFolders.find(tmp_path, "z*/{image}")


@pytest.mark.parametrize("template", ["{}", "{a!s}", "}", "{a", "{a:{b}}", "{a:d}", "{0.x"])
def test_other_templates_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match="is not a path template .*; correct it") as caught:
        template_parts(template)
    assert repr(template) in str(caught.value)


@pytest.mark.parametrize("form", [">2000000000", ".256", ">９９９"])
def test_a_width_of_more_than_a_name_is_refused(form: str) -> None:
    with pytest.raises(ValueError, match="width or precision above 255"):
        template_parts(f"{{a:{form}}}")
    assert len(fill_template(template_parts("{a:>255}"), {"a": "1"})) == 255
