"""Path templates: as Python formats them, without attributes, indices and nested fields."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data.sources.path_template import fill_template, template_parts

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
