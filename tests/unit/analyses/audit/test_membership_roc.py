"""The figure of membership attacks: curves, the forbidden region, what stands beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.audit.membership_roc import membership_roc
from dpprobe.errors import DataError
from tests.support.figures import drawn_figure, tick_texts

FPR = np.logspace(-4, 0, 9)


def record(*, allowed: float = 4.0, groups: tuple[str, ...] = ("all",)) -> dict[str, Any]:
    """A record in which every attack has twice as many true as false positives."""
    low, tpr, high = (np.minimum(factor * FPR, 1.0).tolist() for factor in (1.5, 2.0, 2.5))
    pairs = [(rows, attack) for rows in groups for attack in ("loss", "lira", "rmia")]
    return {
        "shadows": 31,
        "targets": 32,
        "rows": [
            {"rows": rows, "attack": attack, "units": 70, "auc": 0.612} for rows, attack in pairs
        ],
        "roc": {
            "fpr": FPR.tolist(),
            "allowed": np.minimum(allowed * FPR, 1.0).tolist(),
            "curves": [
                {"rows": rows, "attack": attack, "tpr": [None, *tpr[1:]], "low": [None, *low[1:]],
                 "high": [None, *high[1:]]}
                for rows, attack in pairs
            ],
        },
    }  # fmt: skip


def drawn(monkeypatch: pytest.MonkeyPatch, membership: dict[str, Any], **changes: Any) -> Any:
    def draw(files: dict[str, Path]) -> None:
        membership_roc(membership, title="digits", svg=files["svg"], png=files["png"], **changes)

    return drawn_figure(monkeypatch, draw)


def legend(figure: Any) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_what_the_plan_forbids_is_shaded_above_its_best_attack(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (axes,) = drawn(monkeypatch, record()).axes
    forbidden = next(c for c in axes.collections if c.get_label() == "forbidden by epsilon")
    (path,) = forbidden.get_paths()
    for fpr in (2e-4, 0.01, 0.1):
        assert path.contains_point((fpr, min(1.0, 4.5 * fpr)))
        assert not path.contains_point((fpr, 3.0 * fpr)), "an attack that is allowed is shaded"
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert {"0.01%", "1%", "100%"} <= set(tick_texts(axes))


def test_nothing_is_forbidden_without_privacy(monkeypatch: pytest.MonkeyPatch) -> None:
    figure = drawn(monkeypatch, record(allowed=1e9))
    assert "forbidden by epsilon" not in legend(figure)
    assert "RMIA, AUC 0.612" in legend(figure)


def test_curves_are_the_records_and_begin_where_they_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (axes,) = drawn(monkeypatch, record()).axes
    (line,) = (one for one in axes.lines if one.get_label().startswith("LiRA"))
    assert np.isnan(line.get_ydata()[0])
    np.testing.assert_allclose(line.get_ydata()[1:], np.minimum(2 * FPR[1:], 1))


def test_nonprivate_stands_beside_in_the_same_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = legend(drawn(monkeypatch, record()))
    figure = drawn(monkeypatch, record(), beside=record(allowed=1e9))
    assert len(legend(figure)) == len(alone) + 3
    colours = {line.get_label(): line.get_color() for line in figure.axes[0].lines}
    pairs = [(label, colours[f"nonprivate: {label}"]) for label in alone if "AUC" in label]
    assert len(pairs) == 3
    assert all(colours[label] == colour for label, colour in pairs)


def test_rows_that_were_not_attacked_are_refused() -> None:
    mislabelled = record(groups=("mislabelled",))
    with pytest.raises(DataError, match="no membership attack on all rows"):
        membership_roc(mislabelled, svg=Path("a"), png=Path("b"), title="digits")


def test_equal_records_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        membership_roc(
            record(), svg=tmp_path / f"{name}.svg", png=tmp_path / f"{name}.png", title="digits"
        )
    for kind in ("svg", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert "Not private: attacks on real" in (tmp_path / "a.svg").read_text()
