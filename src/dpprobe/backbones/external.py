"""Vectors from another program: any model's embeddings of text, sound, tables, cells or images.

The privacy guarantee depends on the study's declaration that each vector was computed from only one
item, which dpprobe cannot check. Whitening, centring, principal components, batch correction,
z-scores and fine-tuning on private items make every vector depend on all items.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dpprobe.backbones.backbone import Backbone, Runtime, backbone_fingerprint
from dpprobe.backbones.options import BackboneOptions
from dpprobe.errors import ConfigError, DataError
from dpprobe.options import Name

if TYPE_CHECKING:
    import torch
    from PIL import Image

FAMILY = "external"


class Options(BackboneOptions):
    """Vectors of a dataset with `source: embeddings`, computed by a model outside dpprobe."""

    takes_vectors: ClassVar[bool] = True

    family: Literal["external"] = "external"
    model: str = Field(
        min_length=1,
        description="Name of the model that computed the vectors, published with the head.",
    )
    version: str | None = Field(None, description="Version of the model.")
    weights_sha256: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="SHA-256 of the model's weights, if known."
    )
    vectors: Name | None = Field(
        None,
        description="Name of the vectors in the dataset's `vectors`; default: the name of the "
        "backbone.",
    )
    pretrained: bool = Field(
        True,
        description="True if the model was trained (on public data). Set to false for a function "
        "without training, such as hashing.",
    )
    each_by_itself: Literal[True] = Field(
        description="Set to true if every vector was computed from its own item alone, which the "
        "privacy guarantee requires. The guarantee fails if vectors were whitened, centred, "
        "z-scored, batch-corrected or reduced by PCA with statistics of the dataset. The guarantee "
        "also fails if the model was fine-tuned on the dataset."
    )

    def check_files(self) -> None:
        """Checks nothing: the dataset names the files."""

    def choose_vectors(self, backbone: str, known: Collection[str]) -> str:
        """Returns the name of the vectors to use; ConfigError if the dataset lacks this name."""
        name = self.vectors or backbone
        if name in known:
            return name
        # If a dataset does not name its vectors, it has one kind, called `vectors`.
        if self.vectors is None and list(known) == ["vectors"]:
            return "vectors"
        raise ConfigError(
            f"vectors: the dataset has no vectors named {name!r}, only {', '.join(known)}; choose "
            "one of these names"
        )


def load(options: Options, runtime: Runtime) -> Backbone:
    """Makes a backbone that returns vectors unchanged; the data decide the `dimension`."""

    def refuse_image(image: Image.Image) -> torch.Tensor:  # noqa: ARG001
        raise DataError(
            f"an image cannot be used here: the head takes vectors of {options.model}, which "
            "dpprobe does not compute. Name a .npy file with these vectors, or in Python pass them "
            "to Predictor.predict_vectors"
        )

    def forward(batch: torch.Tensor) -> torch.Tensor:
        return batch.to(runtime.device).flatten(1)

    fingerprint = backbone_fingerprint(
        options, preprocessing={}, weights_sha256=options.weights_sha256, libraries=[]
    )
    return Backbone(
        dimension=options.dimension,
        preprocessing={},
        weights_sha256=options.weights_sha256,
        fingerprint=fingerprint,
        architecture=options.model,
        pretrained_tag=options.version,
        trained=options.pretrained,
        transform=refuse_image,
        forward=forward,
        takes_vectors=True,
    )
