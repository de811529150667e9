"""Options that every backbone has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import Field

from dpprobe.errors import ConfigError
from dpprobe.options import Options

# Options of a backbone that do not decide its features.
BACKBONE_NOTES = frozenset({"catalog", "dimension"})


class BackboneOptions(Options, ABC):
    """A frozen feature extractor; `family` selects the module that loads it."""

    # True for a neural network, which gains from threads.
    network: ClassVar[bool] = False

    family: str
    catalog: str | None = Field(
        None,
        description="The entry of resources/backbones.yaml that gives the options which are not "
        "written.",
    )
    dimension: int | None = Field(
        None, ge=1, description="Features an image; another number that comes out is an error."
    )

    @abstractmethod
    def check(self) -> None:
        """Raises ConfigError when a named file or model is missing. Cheap: reads no weights."""

    @property
    def computed_dimension(self) -> int | None:
        """Features an image, where the options alone say; None for networks, and where rows do."""
        return None

    @property
    def fewer_features(self) -> str | None:
        """The option, as written in a study, that makes fewer features; None where none does."""
        return None

    def check_dimension(self, features: int | None) -> None:
        """Raises ConfigError when another number of features comes out than the options say."""
        if self.dimension not in (None, features):
            raise ConfigError(
                f"dimension: {self.dimension} features an image were expected and {features} come "
                "out; correct it, or the model's options"
            )

    def input_files(self) -> tuple[str, ...]:
        """Returns the files whose change makes the features stale."""
        return ()

    @property
    def reads_text(self) -> bool:
        """True if it has a text encoder that this environment can run."""
        return False

    @property
    def random_crops(self) -> bool:
        """True if training images enter by a part that depends on their bytes."""
        return False

    def warnings(self) -> list[str]:
        """Returns what a user should know beforehand, one line each. Cheap."""
        return []

    def text_params(self) -> dict[str, Any]:
        """Returns the options that decide text embeddings, JSON-compatible."""
        return self.extraction_params()

    def extraction_params(self) -> dict[str, Any]:
        """Returns the options that decide the features, JSON-compatible: without files' places."""
        return self.model_dump(mode="json", exclude=set(BACKBONE_NOTES))
