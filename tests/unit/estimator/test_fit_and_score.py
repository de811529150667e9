"""Seeds, probabilities, and rows that are read at once or in blocks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax, softmax

from dpprobe.errors import ConfigError
from dpprobe.estimator import array_inputs, fit_and_score
from tests.support.classifiers import make_benchmark, make_rows


def test_a_seed_is_a_whole_number_or_drawn_by_a_random_state() -> None:
    """As in scikit-learn, a random state is advanced by each draw."""
    assert fit_and_score.draw_seed(7) == 7
    assert fit_and_score.draw_seed(np.int64(2)) == 2  # type: ignore[arg-type]
    state, twin = np.random.RandomState(3), np.random.RandomState(3)
    for _ in range(2):
        assert fit_and_score.draw_seed(state) == twin.randint(2**31)
    for other in (7.0, "7", np.random.default_rng(0)):
        with pytest.raises(ConfigError, match="random_state .*: pass a whole number, or None"):
            fit_and_score.draw_seed(other)  # type: ignore[arg-type]

    drawn = {fit_and_score.draw_seed(None) for _ in range(40)}
    assert len(drawn) == 40
    assert 2**120 < max(drawn) < 2**128


SCORES = np.array([[0, 1, -3], [-2e3, -1e3, -1e3], [5, 5, 5]], np.float32)


def link(kind: str) -> Any:
    method: Any = SimpleNamespace(link_on=lambda _: kind)
    return fit_and_score.link_scores(SCORES, method)


def test_probabilities_equal_scipys() -> None:
    np.testing.assert_allclose(link("softmax"), softmax(SCORES.astype(float), axis=1))
    chances = link("sigmoid")
    each = expit(SCORES[::2].astype(float))  # one sigmoid per label, normalised per row
    np.testing.assert_allclose(chances[::2], each / each.sum(axis=1, keepdims=True))
    # all sigmoids round to 0, but not their ratios: sigmoid(-x) is nearly exp(-x)
    expected = np.exp(log_softmax(SCORES[1].astype(float)))
    np.testing.assert_allclose(chances[1], expected, atol=1e-12)
    assert chances.dtype == np.float64


@pytest.mark.parametrize("rates", [(1, 1), (1, 0.5), (0.5, 0.5)])
def test_rows_are_streamed_if_they_are_many_and_all_are_used(
    rates: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.arange(24, dtype=np.float32).reshape(8, 3)
    plan: Any = SimpleNamespace(mechanisms=[SimpleNamespace(sample_rate=rate) for rate in rates])
    for size, small in ((95, False), (96, True)):
        monkeypatch.setattr(fit_and_score, "STREAMED_BYTES", size)
        read = fit_and_score.load_features(array_inputs.MappedRows(rows), plan)
        in_memory = small or min(rates) < 1
        assert isinstance(read, torch.Tensor) == in_memory
        whole = read.numpy() if isinstance(read, torch.Tensor) else array_inputs.read_source(read)
        np.testing.assert_array_equal(whole, rows)


def test_texts_of_any_storage_are_read(tmp_path: Path) -> None:
    """Neither scikit-learn nor NumPy reads StringDType or texts of HDF5 directly."""
    X, y = make_rows()
    texts = np.array([f"c{label}" for label in y])
    names = [f"p{row // 2}" for row in range(len(X))]
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["groups"] = np.array(names, "S")
        plain = make_benchmark(classes=None, unit="group").fit(X, texts, groups=names)
        other = make_benchmark(classes=None, unit="group").fit(
            X, texts.astype(np.dtypes.StringDType()), groups=file["groups"]
        )
    np.testing.assert_array_equal(plain.coef_, other.coef_)
