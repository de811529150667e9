"""Networks are timed before a run if many images wait for them."""

from __future__ import annotations
