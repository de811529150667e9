"""Options that every head has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from dpprobe.errors import ConfigError
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.normalisation import (
    AroundCentre,
    NoNormalisation,
    Normalize,
    Priced,
    Whitened,
)
from dpprobe.options import AtMost, Options
from dpprobe.privacy.plan import (
    LARGEST_SENSITIVITY,
    SMALLEST_SENSITIVITY,
    Mechanism,
    Selection,
    split_budget,
)

PUBLIC_ROWS = "normalize.public"  # the option of a normalisation's public file
CLASS_OFFSETS = "class_offsets"  # the release of `heads.class_offsets`
ClippingNorm = Annotated[float, Field(ge=SMALLEST_SENSITIVITY, le=LARGEST_SENSITIVITY)]

# Accounting takes a minute for a million steps at sampling rate 2.5e-5, and ten minutes for four
# million. For a million steps at rate 0.02, epsilon cannot be computed to within 0.1%.
MOST_STEPS = AtMost(
    1_000_000,
    "each step is a noisy release; accounting for more steps takes many minutes per epsilon, "
    "or fails",
)


def check_counts(mechanisms: Sequence[Mechanism]) -> None:
    """Raises ConfigError if a mechanism has more releases than accountants can handle."""
    for mechanism in mechanisms:
        if mechanism.count > MOST_STEPS.limit:
            raise ConfigError(
                f"{mechanism.name}: steps {MOST_STEPS.describe_fault(mechanism.count)} epochs, or "
                "a larger batch_size"
            )


class MethodOptions(Options, ABC):
    """The options of a method; `head` selects the module that trains the head."""

    model_config = ConfigDict(allow_inf_nan=False)

    private: ClassVar[bool] = True
    # True if a fit also trains a part of the backbone.
    tunes_network: ClassVar[bool] = False
    # The version, raised if the same options lead to a different head: old cells are trained again.
    fit_version: ClassVar[int] = 1
    # Options that no search may change.
    FIXED: ClassVar[frozenset[str]] = frozenset({"head", "normalize", "engine"})
    # Options that are the path of a public file, which may contain "{dataset}" and "{backbone}".
    paths: ClassVar[tuple[str, ...]] = ()

    COUNTERPARTS: ClassVar[Mapping[str, str]] = {
        "balanced": "class_priors: released",
        "class_priors": "balanced: true",
    }

    head: str
    normalize: Normalize = Field(
        default_factory=NoNormalisation,
        description="Normalisation of each feature vector: none, l2, layer_norm, group_norm (each "
        "image by itself); or one that releases statistics of the features from the head's own "
        "budget: centred, whitened, channels.",
    )

    @model_validator(mode="after")
    def _check_normalize(self) -> MethodOptions:
        if self.normalize.priced and not self.private:
            raise ValueError(
                f"normalize: {self.normalize.kind} takes a share of a privacy budget, but head "
                f"{self.head} has no budget; use l2 or none"
            )
        # public rows and public heads are normalised like private rows
        mapped = ("public", "public_head")
        files = [name for name in self.public_files() if name.rpartition(".")[2] not in mapped]
        if isinstance(self.normalize, Whitened) and files:
            raise ValueError(
                "normalize: whitened transforms rows by released statistics, but "
                f"{files[0]} was computed from rows without this transformation; write "
                "normalize: centred"
            )
        return self

    def resolve_choice(self, facts: DataFacts, *, exact: bool = False) -> MethodOptions:  # noqa: ARG002
        """Returns options with a head chosen from public facts; only `auto` changes.

        Args:
          exact: True to choose exact sums, as for a release; options set by the user do not change.
        """
        return self

    def follow_metric(self, metric: str, *, multi_label: bool) -> MethodOptions:  # noqa: ARG002
        """Adapts the options to a cell's headline metric; only a non-private head changes.

        The metric may depend on labels, which must not influence a private head.
        """
        return self

    @property
    def is_undecided(self) -> bool:
        """True if the head is not chosen yet, because facts about the data are missing."""
        return False

    @property
    def trained_head(self) -> MethodOptions:
        """The head that a fit trains: the method itself, or the head that `auto` chose."""
        return self

    @property
    def trial_head(self) -> MethodOptions:
        """The method of a single fit: the method itself, or the base of a search."""
        return self

    @property
    def multi_label(self) -> bool:
        """True if the method supports rows with several labels."""
        return False

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        """The function from scores to probabilities; "none" if scores are not logits."""
        return "softmax"

    def link_on(self, multi_label: bool) -> Literal["softmax", "sigmoid", "none"]:  # noqa: ARG002
        """Returns the link (scores to probabilities) for rows with one label or with several."""
        return self.link

    @property
    def private_choices(self) -> str | None:
        """Names a choice from private examples that no mechanism covers; None without one.

        `resources/statement.yaml` describes the names under `not_covered`.
        """
        return None

    @property
    def is_exact(self) -> bool:
        """True if all releases of the head are exact: integer sums with rounded noise."""
        return self.private

    @property
    def counted_classes(self) -> int | None:
        """The number of classes that the options require; None if any number is allowed."""
        return None

    def class_fault(self, classes: int, *, multi_label: bool) -> str | None:  # noqa: ARG002
        """Explains why the options do not fit the number of classes or labels; None if they fit."""
        return None

    @property
    def units_fault(self) -> str | None:
        """Explains why a unit of privacy cannot have several rows; None if it can."""
        return None

    @property
    def releases_priors(self) -> bool:
        """True if the head releases class frequencies, to remove their effect on predictions."""
        return False

    @property
    def has_student(self) -> bool:
        """True if a student on public images may replace the trained head."""
        return False

    @property
    def running_sums(self) -> tuple[str, ...] | None:
        """The releases whose sums add up over cohorts; None if a chain of cohorts is impossible."""
        return None

    @property
    def engine_limits(self) -> str | None:
        """The name of an engine that is not exact, for the privacy statement; None if exact."""
        return None

    def public_files(self) -> dict[str, str]:
        """Returns the files that the method declares public, by option."""
        paths = {name: getattr(self, name) for name in self.paths}
        if isinstance(self.normalize, AroundCentre):
            paths[PUBLIC_ROWS] = self.normalize.public
        return {name: path for name, path in paths.items() if path is not None}

    def input_files(self) -> tuple[str, ...]:
        """Returns the public files whose change makes the head stale, such as initial weights."""
        return tuple(self.public_files().values())

    def identity_options(self) -> dict[str, Any]:
        """Returns what decides the head: the version, and options without public files' paths."""
        unnamed: dict[str, Any] = {**dict.fromkeys(self.paths, True), "normalize": {"public"}}
        version = {"fit_version": self.fit_version} if self.fit_version > 1 else {}
        return {**self.model_dump(mode="json", exclude=unnamed), **version}

    def fill_paths(self, *, dataset: str, backbone: str) -> Self:
        """Fills names into paths with braces; raises ConfigError for other names in braces."""
        changes: dict[str, Any] = {}
        for name, path in self.public_files().items():
            try:
                changes[name] = path.format(dataset=dataset, backbone=backbone)
            except (KeyError, IndexError, ValueError):
                raise ConfigError(
                    f"{name}: {path!r}: only {{dataset}} and {{backbone}} may be in braces; "
                    "remove the others"
                ) from None
        if PUBLIC_ROWS in changes:
            update = {"public": changes.pop(PUBLIC_ROWS)}
            changes["normalize"] = self.normalize.model_copy(update=update)
        return self.model_copy(update=changes)

    @abstractmethod
    def list_releases(self, n: int) -> tuple[Mechanism, ...]:
        """Returns the head's own releases for n units, with noise up to a common factor."""

    def list_mechanisms(self, n: int) -> tuple[Mechanism, ...]:
        """Returns all releases, up to a noise factor; raises ConfigError if n is too small."""
        released = self.list_releases(n)
        if not isinstance(self.normalize, Priced):
            return released
        share = self.normalize.share
        return split_budget([(share, self.normalize.list_releases(n)), (1 - share, released)])

    def priced_selection(self, n: int) -> Selection | None:  # noqa: ARG002
        """Returns the selection of a search's best trial; None without a search."""
        return None
