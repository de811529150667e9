"""Compiles the templates of pages and cards once, because compiling dominates small releases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from jinja2 import Environment

_CODES: dict[tuple[Any, ...], Any] = {}
_COMPILE: Any = Environment.compile


def _compile_once(
    environment: Environment,
    source: Any,
    name: str | None = None,
    filename: str | None = None,
    *rest: Any,
) -> Any:
    """Returns a template file's code, cached for all environments (Jinja caches for each)."""
    if filename is None or rest:
        return _COMPILE(environment, source, name, filename, *rest)
    key = (source, name, filename, type(environment), environment.finalize, environment.autoescape)
    if key not in _CODES:
        _CODES[key] = _COMPILE(environment, source, name, filename)
    return _CODES[key]


def keep_templates(patch: pytest.MonkeyPatch) -> None:
    """Makes this process and its forks compile each template only once."""
    patch.setattr(Environment, "compile", _compile_once)


@pytest.fixture(scope="session", autouse=True)
def _compiled_templates() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        keep_templates(patch)
        yield
