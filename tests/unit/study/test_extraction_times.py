"""Networks are timed before a run if they must process many images."""

from __future__ import annotations
