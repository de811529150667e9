"""The t-SNE plane as one HTML file: zoom, and classes to hide.

The plane has no noise, so it is not differentially private. The page has no images and no ids.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dpprobe.analyses.tsne.measure import read_embedding
from dpprobe.artifacts import write_text
from dpprobe.exhibits.class_colours import CIRCLES, CLASS_COLOURS
from dpprobe.exhibits.html_page import content_policy
from dpprobe.resources import resource_path


def write_backbone_page(
    *, embedding: Path, dataset: str, backbone: str, split: str, page: Path
) -> None:
    """Writes the page of one (dataset, backbone); it asks for nothing from outside.

    Args:
      embedding: written by `analysis.tsne`.

    Raises:
      DataError: when the embedding is not one.
    """
    table, facts = read_embedding(embedding)
    data = {
        "names": facts["class_names"],
        "x": _round_values(table["x"].to_numpy()),
        "y": _round_values(table["y"].to_numpy()),
        "label": table["label"].to_pylist(),
        "colours": CLASS_COLOURS,
        "circles": CIRCLES,
    }
    template = resource_path("tsne")
    style = (template / "style.css").read_text(encoding="utf-8")
    script = (template / "script.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(template), autoescape=True, undefined=StrictUndefined
    )
    text = environment.get_template("page.html.j2").render(
        title=f"{dataset} {split}, {backbone}",
        facts=facts,
        method=facts.get("method"),
        legend=facts.get("legend", "class"),
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, script),
        # "<" would end the block that holds the data.
        data=Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")),
    )
    write_text(page, text)


def _round_values(values: np.ndarray) -> list[float]:
    return [round(float(value), 3) for value in values]
