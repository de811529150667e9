"""Normalisations of feature rows before training, and their privacy cost.

A normalisation that treats each row separately costs no privacy. A normalisation with statistics of
private examples is a release: it has mechanisms and a share of the head's budget, and its
statistics are published with the head. Imports nothing heavy; `dpprobe.heads.normalised_rows`
normalises rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema

from dpprobe.options import Options
from dpprobe.privacy.plan import Mechanism, full_batch, split_budget

CENTRE = "centre"
SECOND_MOMENT = "second_moment"
CHANNEL_MEANS = "channel_means"
CHANNEL_DEVIATIONS = "channel_deviations"
# The type of a share of the privacy budget.
Share = Annotated[float, Field(gt=0, lt=1)]
SMALLEST_BOUND, LARGEST_BOUND = 1e-6, 1e6
# Far above any variance whose square root is 0 in float32.
SMALLEST_FLOOR = 1e-12
# The option's description, for heads whose rows are centred by default.
CENTRED_BY_DEFAULT = (
    "Normalisation of features; the default releases a centre from the head's budget."
)


class Normalisation(Options):
    """A normalisation of feature vectors; unless `priced`, it maps each vector separately."""

    model_config = ConfigDict(allow_inf_nan=False)
    priced: ClassVar[bool] = False

    kind: str

    @model_serializer(mode="wrap")
    def _write_brief(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any] | str:
        """Serialises a normalisation without parameters as its `kind`."""
        values: dict[str, Any] = handler(self)
        return self.kind if len(values) == 1 else values

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:  # noqa: ARG002
        """Returns the releases over n units, with noise multipliers up to a common factor."""
        return ()


class NoNormalisation(Normalisation):
    """Leaves features as they are."""

    kind: Literal["none"] = "none"


class L2(Normalisation):
    """Scales each feature vector to unit L2 norm; a zero vector stays zero."""

    kind: Literal["l2"] = "l2"


class LayerNorm(Normalisation):
    """Scales each image's features to mean 0 and variance 1 (Ba, Kiros and Hinton 2016)."""

    kind: Literal["layer_norm"] = "layer_norm"


class GroupNorm(Normalisation):
    """Scales each of an image's equal feature groups to mean 0 and variance 1 (Wu and He 2018)."""

    kind: Literal["group_norm"] = "group_norm"
    groups: int = Field(ge=1, description="Number of feature groups; it must divide the dimension.")


class Priced(Normalisation):
    """Releases statistics of the private examples, with a share of the head's budget."""

    priced: ClassVar[bool] = True

    share: Share = Field(
        0.04,
        description="Share of the budget: this release's part of the sum of count * rate^2 / "
        "noise_multiplier^2 over all releases of the fit.",
    )


# The option of normalisations that release a mean.
PublicRows = Annotated[
    str | None,
    Field(
        min_length=1,
        exclude_if=lambda value: value is None,
        description="Public images of a similar kind, without labels: the name of a dataset under "
        "public_datasets, or a file of its features through the same backbone (manifest.json, or "
        ".npy with one row per image). The released centre is shrunk towards their mean in place "
        "of 0, at no privacy cost. Features of private images are refused.",
    ),
]


class AroundCentre(Priced):
    """Subtracts a released mean: a noisy sum of unit rows (sensitivity 1), divided by public n."""

    public: PublicRows = None

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:  # noqa: ARG002
        return (full_batch(CENTRE, "sum of the rows, each scaled to unit norm", 1.0),)


class Centred(AroundCentre):
    """Scales features to unit L2 norm, subtracts their released mean, and scales them again.

    Most of the length of a network's features is their mean. Without the mean, differences between
    classes are several times as large relative to the noise.
    """

    kind: Literal["centred"] = "centred"


class Whitened(AroundCentre):
    """Centres features, equalises their variance over directions, and scales them to unit norm.

    Releases the centre of `centred`, and the second moment of the centred features: the sum of x
      x^T, of sensitivity 1, with symmetric noise (`dpprobe.heads.whitening`). Whitening helps most
      with many classes, n well above d, and features that vary much more in some directions.
    """

    kind: Literal["whitened"] = "whitened"
    share: Share = Field(
        0.14,
        description="Share of the budget for both releases together: their part of the sum of "
        "count * rate^2 / noise_multiplier^2 over all releases of the fit.",
    )
    moment_share: Share = Field(
        0.7, description="The second moment's part of `share`; the centre gets the rest."
    )
    exponent: float = Field(
        0.4,
        gt=0,
        le=0.5,
        description="Power of the inverse second moment by which features are mapped; 0.5 whitens "
        "them.",
    )

    moment: Literal["released", "public"] = Field(
        "released",
        exclude_if=lambda value: value == "released",
        description="Second moment by which features are mapped: released, or computed from the "
        "images of `public`, which leaves all of `share` to the centre.",
    )

    @model_validator(mode="after")
    def _check_moment(self) -> Self:
        if self.moment == "public" and self.public is None:
            raise ValueError("moment: public needs `public`, a file of public features; add it")
        return self

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:
        if self.moment == "public":
            return super().list_releases(n)
        moment = full_batch(SECOND_MOMENT, "sum of the centred rows' outer products", 1.0)
        share = self.moment_share
        return split_budget([(1 - share, super().list_releases(n)), (share, (moment,))])


class Channels(Priced):
    """Standardises each channel with released statistics (Tramer and Boneh 2021).

    A row is channels x positions, channel-major, as in scattering and `nn.BatchNorm2d`. Means and
    deviations are released as sums over the rows, which are divided by the public n:

    - "channel_means": each row's means over positions [channels], scaled down to norm
      `max_mean_norm` if longer. A row adds a vector of norm at most `max_mean_norm`.
    - "channel_deviations": each row's root mean square distance over positions to the released
      means [channels], scaled down to norm `max_deviation_norm`. Whatever the released means are, a
      row adds a vector of norm at most `max_deviation_norm`, and composition is adaptive.

    The releases of means and of deviations have equal noise multipliers. Tramer and Boneh release
    mean squares instead of their roots. Roots span half as many orders of magnitude, so even
    deviations hundreds of times below the largest exceed the noise.

    Clipping bounds are public constants, never a quantile of the rows. Scattering hardly expands
    distances (Bruna and Mallat 2013, section 2.3). For images in [0, 1] the squares of all
    coefficients, averaged over positions, sum to at most about 1 per colour. Squared distances to
    the coefficients of a mid-grey image sum to at most about 1/4. So an image's channel means have
    norm at most about sqrt(3) in colour and 1 in grey, and the deviations half of it.
    """

    kind: Literal["channels"] = "channels"
    channels: int = Field(ge=1, description="Number of channels; it must divide the dimension.")
    max_mean_norm: float = Field(
        ge=SMALLEST_BOUND,
        le=LARGEST_BOUND,
        description="Largest norm of an image's channel means, a public constant. For scattering "
        "of images in [0, 1]: 1 in grey, 1.7321 in colour.",
    )
    max_deviation_norm: float = Field(
        ge=SMALLEST_BOUND,
        le=LARGEST_BOUND,
        description="Largest norm of an image's channel deviations, a public constant. For "
        "scattering of images in [0, 1]: 0.5 in grey, 0.8661 in colour.",
    )
    floor: float = Field(
        1e-5,
        ge=SMALLEST_FLOOR,
        le=LARGEST_BOUND,
        description="Added to each channel's variance, so that channels with a tiny variance are "
        "not amplified.",
    )

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:  # noqa: ARG002
        return (
            full_batch(
                CHANNEL_MEANS,
                "sum of the rows' channel means, each vector clipped",
                self.max_mean_norm,
            ),
            full_batch(
                CHANNEL_DEVIATIONS,
                "sum of the rows' channel deviations from the released means, each vector clipped",
                self.max_deviation_norm,
            ),
        )


KINDS: dict[str, type[Normalisation]] = {
    cls.model_fields["kind"].default: cls
    for cls in (NoNormalisation, L2, LayerNorm, GroupNorm, Centred, Whitened, Channels)
}


def _spelt_out(value: Any) -> Any:
    if isinstance(value, Normalisation):
        return value
    mapping = {"kind": value} if isinstance(value, str) else value
    if not isinstance(mapping, Mapping):
        raise ValueError(
            f"{value!r}: choose one of {', '.join(KINDS)}, or a mapping with the key kind"
        )
    kind = mapping.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}; choose one of: {', '.join(KINDS)}")
    return KINDS[kind].model_validate(dict(mapping))


class _BareWords:
    """Allows kinds as bare words in the JSON schema, for editors."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        schema = handler(core_schema)
        bare = [
            name
            for name, cls in KINDS.items()
            if not any(field.is_required() for field in cls.model_fields.values())
        ]
        return {"anyOf": [{"enum": bare}, *schema["oneOf"]]}


Normalize: TypeAlias = Annotated[
    NoNormalisation | L2 | LayerNorm | GroupNorm | Centred | Whitened | Channels,
    Field(discriminator="kind"),
    BeforeValidator(_spelt_out),
    _BareWords(),
]
