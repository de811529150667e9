"""The small curve on a dataset's card: the best private head against epsilon."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from dpprobe.exhibits import style
from dpprobe.exhibits.epsilon_axis import EpsilonScale, draw_epsilon_axis
from dpprobe.exhibits.html_page import embed_picture
from dpprobe.results.best_private import Best


def draw_curve(bests: Sequence[Best]) -> str:
    """Draws one dataset's best private results with 95% intervals; returns a data URL.

    The dashed line is the dataset's best non-private result, because a line of each point's own
    baseline would bend where the best backbone changes. The dotted line is the majority-class
    baseline, if inside the axis limits. `bests` must be sorted by increasing epsilon.
    """
    with style.use_settings():
        figure = Figure(figsize=(4.8, 2.7), layout="constrained")
        axes = figure.add_subplot()
        scale = EpsilonScale(
            finite=tuple(best.head_epsilon for best in bests), infinite=False, curves=1
        )
        places = list(map(scale.place_of, scale.finite))
        values = [(b.entry.mean, b.entry.both_low, b.entry.both_high) for b in bests]
        look = style.choose_looks(1)[0]
        style.draw_banded(axes, places, values, look)
        style.draw_error_bars(axes, places, values, color=look[0], linestyle="none", elinewidth=0.8)
        draw_epsilon_axis(axes, scale)
        if bests[0].highest_ceiling is not None:
            axes.axhline(
                bests[0].highest_ceiling.mean,
                color=style.NEUTRAL,
                linestyle=style.CEILING_STYLE,
                linewidth=1,
                label="best non-private baseline",
            )
        constant, (bottom, top) = bests[0].entry.constant, axes.get_ylim()
        if constant is not None and bottom <= constant <= top:
            axes.axhline(
                constant,
                color=style.SUBTLE,
                linestyle=(0, (1, 2)),
                linewidth=1,
                label="majority-class baseline",
            )
        if axes.get_legend_handles_labels()[0]:
            figure.legend(loc="outside upper left", ncols=2, fontsize=8)
        axes.set_ylabel(f"test {bests[0].measure.title} (%)")
        return embed_picture(style.draw_svg(figure))
