"""A further rule of `auto`, for tests of what happens when a rule is added."""

from __future__ import annotations

import pytest

from dpprobe.heads import auto, auto_rule


def raise_rule(monkeypatch: pytest.MonkeyPatch) -> int:
    """Increases the number of the current rule, with unchanged choices; returns the new number."""
    number = auto_rule.RULE + 1
    monkeypatch.setitem(auto_rule.LIMITS, number, auto_rule.LIMITS[auto_rule.RULE])
    monkeypatch.setattr(auto, "RULE", number)
    return number
