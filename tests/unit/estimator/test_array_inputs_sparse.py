"""Sparse rows, such as hashed words, are refused with the step that makes them dense."""

from __future__ import annotations

import operator
import re

import numpy as np
import pytest
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer

from dpprobe.errors import DpprobeError
from tests.support.classifiers import make_private

TEXTS = [f"{word} number {index}" for index in range(60) for word in ("rain", "sun")]
LABELS = np.tile([0, 1], 60)
WORKAROUND = r'FunctionTransformer\(operator\.methodcaller\("toarray"\)\)'


def make_steps(*steps: object) -> Pipeline:
    return make_pipeline(HashingVectorizer(n_features=32), *steps, make_private(classes=(0, 1)))


def test_the_refusal_of_a_text_pipeline_names_a_step_that_works() -> None:
    with pytest.raises(DpprobeError, match="sparse") as refused:
        make_steps().fit(TEXTS, LABELS)
    found = re.search(WORKAROUND, str(refused.value))
    assert found is not None, f"no workaround: {refused.value}"
    step = eval(found[0], {"FunctionTransformer": FunctionTransformer, "operator": operator})
    fitted = make_steps(step, Normalizer()).fit(TEXTS, LABELS)
    assert fitted.predict(TEXTS).shape == (len(TEXTS),)
