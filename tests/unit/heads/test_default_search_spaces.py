"""The spaces that `tuned` searches where a study names none."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dpprobe.heads.default_search_spaces import SPACES, default_space
from dpprobe.heads.registry import HEADS, method_options
from dpprobe.heads.tuned import Options
from dpprobe.options import options_class
from tests.conftest import REPOSITORY

N = 2000


def tuned(base: dict[str, Any], **others: Any) -> Options:
    method = method_options({"head": "tuned", "base": base, **others})
    assert isinstance(method, Options)
    return method


@pytest.mark.parametrize("head", sorted(SPACES))
def test_a_head_is_searched_over_options_that_it_has_at_no_change_of_price(head: str) -> None:
    assert set(SPACES[head]) <= set(options_class(HEADS, head).model_fields)
    method = tuned({"head": head})
    assert set(method.search) <= set(SPACES[head])
    names = [item.name for item in method.list_releases(N)]  # raises where a price would change
    assert names == ["score", *(item.name for item in method.base.list_releases(N))]
    # the head as it is must be among what is searched
    for name, values in method.search.items():
        assert getattr(method.base, name) in values


def test_the_space_is_part_of_the_options() -> None:
    method = tuned({"head": "prototypes"})
    written = json.loads(json.dumps(method.model_dump(mode="json")))
    assert written["search"] == {"intercept": [0.0, 0.5, 1.0]}
    assert method_options(written) == method
    assert method.identity_options()["search"] == written["search"]


def test_the_page_states_every_space() -> None:
    page = (REPOSITORY / "docs/methods/tuned.md").read_text(encoding="utf-8")
    stated: dict[str, dict[str, Any]] = {}
    for heads, options in re.findall(r"^\| (`.+`) \| (`.+`.*) \|$", page, re.MULTILINE):
        for head in re.findall(r"`(\w+)`", heads):
            base = method_options({"head": head})
            for name, times, numbers in re.findall(r"`(\w+)` (×?)([^;]+)", options):
                own = getattr(base, name)
                values = [float(number) for number in re.findall(r"[\d.]+", numbers)]
                wanted = [own * value for value in values] if times else sorted({*values, own})
                stated.setdefault(head, {})[name] = pytest.approx(wanted)
    assert {head: default_space(method_options({"head": head})) for head in SPACES} == stated


def test_what_a_base_writes_is_not_searched() -> None:
    assert set(tuned({"head": "newton"}).search) == {"step", "max_grad_norm"}
    assert set(tuned({"head": "newton", "step": 1.0}).search) == {"max_grad_norm"}
