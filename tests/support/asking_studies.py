"""A study of three datasets, three backbones and five methods, to which tests add analyses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SGD = {"head": "sgd", "batch_size": 32, "epochs": 1}
TUNED = {"head": "fine_tune", "tune": {"blocks": 2}}
METHODS: dict[str, Any] = {
    "sgd": SGD,
    "ours": {"head": "least_squares"},
    "ceiling": {"head": "nonprivate"},
    "tuned": TUNED,
    "auto": {"head": "auto"},
}
BACKBONES: dict[str, Any] = {
    "pixels": {"family": "pixels"},
    "clip": {"family": "open_clip", "model": "ViT-B-32", "pretrained": "openai"},
    "net": {"family": "timm", "model": "vit_tiny_patch16_224", "pretrained": False},
}
DIGITS = {"source": "sklearn", "name": "digits"}
CHEST = {
    "source": "csv",
    "root": ".",
    "train": "rows.csv",
    "label_columns": ["one", "two"],
    "group_columns": ["sex", "age"],
}
SKIN = CHEST | {"group_columns": ["site"]}
FULL: dict[str, Any] = {
    "study": "full",
    "datasets": {"digits": DIGITS, "chest": CHEST, "skin": SKIN},
    "backbones": BACKBONES,
    "methods": METHODS,
    "epsilons": [1, 10, "inf"],
    "delta": 1e-5,
    "seeds": 2,
}


def write_rows(folder: Path) -> None:
    """Writes the table and the images of the datasets with several labels per image."""
    for number in range(50):
        (folder / f"{number}.png").touch()
    lines = [f"{n}.png,{n % 2},0,{'FM'[n % 2]},{n % 7},{n % 3},{n % 5}\n" for n in range(50)]
    text = "image,one,two,sex,age,site,class\n" + "".join(lines)
    (folder / "rows.csv").write_text(text)
