"""The spaces that `tuned` searches where a study names none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dpprobe.heads.default_search_spaces import SPACES, Times, default_space
from dpprobe.heads.registry import HEADS, method_options
from dpprobe.heads.tuned import Options
from dpprobe.options import options_class

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


def test_factors_are_of_the_base_s_number() -> None:
    """Of what the head has by default; what a base writes is not searched."""
    base = method_options({"head": "sgd"})
    space = default_space(base)
    assert space == {"learning_rate": pytest.approx([0.03, 0.1, 0.3, 1.0, 3.0, 10.0])}
    assert set(tuned({"head": "newton"}).search) == {"step", "max_grad_norm"}
    assert set(tuned({"head": "newton", "step": 1.0}).search) == {"max_grad_norm"}
    assert Times((1 / 3, 1.0)).values_around(0.1) == (0.0333333, 0.1)


def test_an_option_that_goes_by_a_rule_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    base = method_options({"head": "newton"})
    space = {"ridge": Times((0.5, 1.0)), "step": Times((0.5, 1.0))}
    monkeypatch.setitem(SPACES, "newton", space)
    assert base.model_dump()["ridge"] is None
    assert default_space(base) == {"step": (0.3, 0.6)}
