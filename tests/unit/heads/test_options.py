"""The options that every method has."""

from __future__ import annotations

import inspect

import pytest

from dpprobe.heads.registry import METHODS
from dpprobe.options import options_class


@pytest.mark.parametrize("name", METHODS)
def test_all_options_of_a_head_stand_in_its_file_and_one_other(name: str) -> None:
    cls = options_class(METHODS, name)
    assert cls.__module__ == METHODS[name]
    owners = {
        next(each.__module__ for each in cls.__mro__ if option in inspect.get_annotations(each))
        for option in set(cls.model_fields) - {"head", "normalize"}
    }
    assert len(owners - {cls.__module__}) <= 1
