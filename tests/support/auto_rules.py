"""Another rule of `auto`, for tests of what a new rule does."""

from __future__ import annotations

import pytest

from dpprobe.heads import auto, auto_rule


def raise_rule(monkeypatch: pytest.MonkeyPatch) -> int:
    """Makes the next number the current rule, with today's choices; returns the number."""
    number = auto_rule.RULE + 1
    monkeypatch.setitem(auto_rule.LIMITS, number, auto_rule.LIMITS[auto_rule.RULE])
    monkeypatch.setattr(auto, "RULE", number)
    return number
