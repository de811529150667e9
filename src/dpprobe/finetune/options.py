"""Options and releases of `fine_tune`: noisy gradient steps on parts of a network and a head.

Each step releases the sum of clipped gradients over a Poisson sample or all rows, plus Gaussian
noise (Abadi et al. 2016, algorithm 1). An example's gradient, over all trained parameters together,
is clipped to L2 norm `max_grad_norm`. With augmentation, it is averaged over the example's views
before clipping (De et al. 2022, section 3.2). At any weights, a row adds at most one clipped
gradient and a null row adds nothing, so the sensitivity is `max_grad_norm`. A unit of privacy with
several rows adds the mean of its examples' clipped gradients. The frozen part, initial weights,
random views and initial adapters are public. A `probe` is a head that is released first, for a
share of the budget, as the network's initial head. Imports nothing heavy.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema, model_validator

from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.normalisation import Priced, Share
from dpprobe.heads.options import ClippingNorm
from dpprobe.heads.registry import AnyMethod
from dpprobe.heads.search_space import Space, list_corners, list_probes, spell_options
from dpprobe.options import AtMost
from dpprobe.options import Options as Block
from dpprobe.privacy.plan import Mechanism, split_budget
from dpprobe.wrong_keys_and_values import explain_first

# Heads that cannot be probes, because they search hyperparameters.
_NO_PROBES = ("auto", "tuned")
_PROBE_SCHEMA = {
    "type": "object",
    "required": ["head"],
    "description": "A private head on the stored features, with its options.",
}
# The largest number of combinations of a search space that are tried in a study's check.
_MOST_CORNERS = 256
# More units than in any real dataset, to compare sampling rates and steps of trials.
_MANY_UNITS = 10**12


class Lora(Block):
    """Low-rank adapters of linear layers (Hu et al. 2021)."""

    rank: int = Field(4, ge=1, le=1024, description="Inner dimension of each adapter.")
    targets: tuple[str, ...] = Field(
        (),
        description="Endings of the names of linear layers that get adapters, such as attn.qkv; if "
        "empty, all linear layers of the blocks get adapters.",
    )
    alpha: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="The adapter's output is multiplied by alpha / rank; without this option, "
        "alpha is the rank.",
    )


class TuneBlocks(Block):
    """`tune: {blocks: k}`: trains the last k blocks and all layers after them."""

    blocks: int = Field(ge=1, description="Train the last k blocks of the network.")


class TuneLora(Block):
    """`tune: {lora: ...}`: trains only adapters and the head."""

    lora: Lora


def blocks_fault(blocks: int, shown: int, name: str) -> str | None:
    """Explains why the last `blocks` of `shown` blocks cannot be trained; None if they can."""
    if not shown:
        return no_blocks(name)
    if 1 <= blocks <= shown:
        return None
    return f"tune: blocks: {blocks}: {name} has {shown} blocks; use a number from 1 to {shown}"


def no_blocks(name: str) -> str:
    """Returns the error text for a network without accessible blocks."""
    return (
        f"tune: {name} gives no access to its blocks; write `tune: all`, bias or norm, or choose a "
        "ViT, ResNet, ConvNeXt, MobileNet or NFNet"
    )


TuneWord = Literal["head", "all", "bias", "norm"]
_TUNE_FORMS: dict[str, type[Block]] = {"blocks": TuneBlocks, "lora": TuneLora}


def _read_tune(value: Any) -> Any:
    """Chooses the form of `tune` by its key, so that errors are only about this form."""
    if isinstance(value, Mapping) and len(value) == 1:
        (key,) = value
        if key in _TUNE_FORMS:
            return _TUNE_FORMS[key].model_validate(dict(value))
    if isinstance(value, TuneBlocks | TuneLora) or value in get_args(TuneWord):
        return value
    raise ValueError(
        f"{value!r}: use head, all, bias, norm, {{blocks: k}} or {{lora: {{rank: r}}}}"
    )


Tune = Annotated[TuneWord | TuneBlocks | TuneLora, BeforeValidator(_read_tune)]


class Augment(Block):
    """Random views of a training image, drawn again in each step from public seeds."""

    views: int = Field(
        1,
        ge=1,
        le=256,
        description="Augmented views per image and step; an image's gradient is the mean over its "
        "views.",
    )
    flip: bool = Field(True, description="Mirror each view with probability 1/2.")
    pad: int = Field(
        0,
        ge=0,
        description="Shift each view of an image by up to this many pixels; the gap mirrors the "
        "image's edge.",
    )

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        if not self.flip and not self.pad:
            raise ValueError(
                "augment: without flip and pad all views are equal; write `flip: true` or a pad "
                "above 0, or remove augment"
            )
        return self


class Probe(Block):
    """A private head on the stored features, from which the network starts, within one budget."""

    share: Share = Field(
        0.3,
        description="The probe's share of the privacy budget: its part of the sum of count * "
        "rate^2 / noise_multiplier^2 over all mechanisms.",
    )
    method: Annotated[AnyMethod, WithJsonSchema(_PROBE_SCHEMA)]

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        method = self.method
        if not method.private or method.tunes_network or method.head in _NO_PROBES:
            raise ValueError(
                f"head {method.head} cannot be a probe; choose another head, such as "
                "feature_covariance"
            )
        return self


class Search(Block):
    """An unpriced search over options; the chosen options are not private."""

    trials: Annotated[int, AtMost(10_000, "each trains a network")] = Field(
        20, ge=2, description="Number of trials."
    )
    space: dict[str, Space] = Field(
        min_length=1,
        description="For each searched option, a list of values, or a range {low, high, log}. "
        "Options that change epsilon, such as steps and batch_size, cannot be searched.",
    )
    held_out: Share = Field(
        0.2, description="Share of the training units on which trials are scored."
    )


class Options(GradientOptions):
    """DP fine-tuning of a network of timm or open_clip.

    Defaults: full batch, momentum, C = 1 and a head of zeros (Mehta et al. 2022, De et al. 2022),
    20 epochs, and the head's learning rate for pre-trained layers.
    """

    DEFAULT_EPOCHS: ClassVar[float] = 20
    tunes_network: ClassVar[bool] = True
    FIXED: ClassVar[frozenset[str]] = frozenset(
        {*GradientOptions.FIXED, "tune", "probe", "search", "precision", "augment"}
    )

    head: Literal["fine_tune"] = "fine_tune"
    tune: Tune = Field(
        description="Parameters trained in addition to the head: head (none), {blocks: k}, all, "
        "bias (all biases), norm (scales and shifts of normalisation layers), {lora: {rank, "
        "targets}}."
    )
    optimiser: Literal["sgd", "momentum", "adam", "lamb"] = Field(
        "momentum",
        description="The optimiser, with the same default constants as the head of the same name.",
    )
    learning_rate: float = Field(
        1.0, gt=0, description="Factor by which each step's averaged noisy gradient is multiplied."
    )
    backbone_rate: float = Field(
        1.0,
        ge=0,
        description="The learning rate of all parameters outside the head is multiplied by this "
        "factor (alpha of Mehta et al. 2022).",
    )
    clipping: Literal["fixed", "automatic"] = Field(
        "fixed",
        description="fixed: gradients longer than max_grad_norm are shortened to it. automatic: "
        "each gradient is divided by its norm plus 0.01 and multiplied by max_grad_norm (Bu et "
        "al. 2022).",
    )
    augment: Augment | None = Field(
        None, description="Random augmentation of the training images; without this option, none."
    )
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Number format of forward and backward passes; in each format, gradients are "
        "summed in float32.",
    )
    engine: Literal["ghost", "opacus"] = Field(  # type: ignore[assignment]
        "ghost",
        description="Method for per-example gradients. ghost: layer by layer, without forming most "
        "gradients. opacus: by Opacus's code, which forms all gradients; for a second opinion. "
        "Sums are float32: for benchmarks, not for release.",
    )
    probe: Probe | None = Field(
        None, description="A private head from which the network's training starts."
    )
    search: Search | None = Field(
        None,
        description="Choose options by an unpriced search on the private images: the network is "
        "then not for release.",
    )
    max_grad_norm: ClippingNorm = Field(
        1.0,
        description="Each example's gradient, over all trained parameters together, is clipped to "
        "this L2 norm.",
    )

    @model_validator(mode="after")
    def _check_network_options(self) -> Self:
        if isinstance(self.normalize, Priced) and self.probe is None:
            raise ValueError(
                f"normalize: {self.normalize.kind} releases statistics, but fine_tune has no "
                "budget share for them; use l2, layer_norm or none, or a probe with this "
                "normalisation"
            )
        if self.releases_priors or (self.probe and self.probe.method.releases_priors):
            raise ValueError(
                "class_priors: released is possible only for linear heads; use public numbers, or "
                "remove class_priors"
            )
        if self.probe and self.probe.method.has_student:
            raise ValueError(
                "student_share: a student replaces linear heads only; remove it from the probe"
            )
        if self.tune == "head" and self.backbone_rate != 1:
            raise ValueError("backbone_rate has no effect with `tune: head`; remove it")
        if self.engine == "opacus":
            self._check_opacus()
        if self.probe is not None:
            self._check_probe(self.probe)
        if self.search is not None:
            self._check_search(self.search)
        return self

    def _check_opacus(self) -> None:
        views = 1 if self.augment is None else self.augment.views
        for option, action, written in (
            ("clipping automatic", "divide gradients by their norms", self.clipping != "fixed"),
            ("precision bfloat16", "sum such gradients in float32", self.precision != "float32"),
            (f"augment.views {views}", "average views before it clips", views > 1),
        ):
            if written:
                raise ValueError(self._describe_opacus(option, action))

    def _check_probe(self, probe: Probe) -> None:
        if self.init != "zero" or self.init_bias is not None:
            key = "init_bias" if self.init == "zero" else f"init {self.init}"
            raise ValueError(
                f"{key} and a probe both set the head's initial weights; remove one of them"
            )
        if probe.method.link != self.link:
            raise ValueError(
                f"probe: head {probe.method.head} gives scores for link {probe.method.link}, but "
                f"loss {self.loss} needs link {self.link}; choose another head or loss"
            )
        if "normalize" in self.model_fields_set and self.normalize != probe.method.normalize:
            raise ValueError(
                "normalize: with a probe, this is an option of the probe's head; move it to "
                "probe.method"
            )
        self._derive(normalize=probe.method.normalize)

    def _check_search(self, search: Search) -> None:
        known = set(type(self).model_fields) - self.FIXED - {*self.paths}
        for name in search.space:
            if name not in known:
                raise ValueError(f"search.space.{name}: not an option that can be searched")
        corners = list_corners(search.space)
        alone = sum(len(list_probes(space)) for space in search.space.values())
        for values in itertools.islice(corners, alone + _MOST_CORNERS):
            self._check_trial(values)

    def _check_trial(self, values: Mapping[str, Any]) -> None:
        """Raises ValueError if values are invalid, or change epsilon or the meaning of scores."""
        place = f"search.space: {spell_options(values)}"
        try:
            changed = self.make_trial(values)
        except ValidationError as error:
            raise ValueError(f"{place}: {explain_first(error)}") from None
        if changed.link != self.link:
            raise ValueError(
                f"{place}: it changes the meaning of scores, so it cannot be searched; write it "
                "as an option of the method"
            )
        shape = [(m.name, m.sample_rate, m.count) for m in changed.list_releases(_MANY_UNITS)]
        if shape != [(m.name, m.sample_rate, m.count) for m in self.list_releases(_MANY_UNITS)]:
            raise ValueError(
                f"{place}: it changes epsilon, so it cannot be searched; write it as an option of "
                "the method"
            )

    def make_trial(self, values: Mapping[str, Any]) -> Options:
        """Returns the options with a trial's values, and without the search."""
        dumped = self.model_dump(exclude={"search"})
        return type(self).model_validate({**dumped, **values})

    def class_fault(self, classes: int, *, multi_label: bool) -> str | None:
        fault = super().class_fault(classes, multi_label=multi_label)
        if fault or self.probe is None:
            return fault
        fault = self.probe.method.class_fault(classes, multi_label=multi_label)
        return f"probe: {fault}" if fault else None

    @property
    def units_fault(self) -> str | None:
        probed = None if self.probe is None else self.probe.method.units_fault
        return super().units_fault or (probed and f"probe: {probed}")

    @property
    def private_choices(self) -> str | None:
        return "search_without_noise" if self.search else None

    @property
    def is_exact(self) -> bool:
        return False

    @property
    def engine_limits(self) -> str | None:
        if self.engine == "opacus":
            return "opacus"
        return "ghost_bfloat16" if self.precision == "bfloat16" else "ghost"

    def public_files(self) -> dict[str, str]:
        files = super().public_files()
        if self.probe is not None:
            probed = self.probe.method.public_files()
            files |= {f"probe.method.{name}": path for name, path in probed.items()}
        return files

    def identity_options(self) -> dict[str, Any]:
        identity = super().identity_options()
        if self.probe is not None:
            identity["probe"] = {
                **identity["probe"],
                "method": self.probe.method.identity_options(),
            }
        return identity

    def fill_paths(self, *, dataset: str, backbone: str) -> Self:
        located = super().fill_paths(dataset=dataset, backbone=backbone)
        if self.probe is None:
            return located
        method = self.probe.method.fill_paths(dataset=dataset, backbone=backbone)
        probe = self.probe.model_copy(update={"method": method})
        return located.model_copy(update={"probe": probe})

    @property
    def blocks(self) -> int | None:
        return self.tune.blocks if isinstance(self.tune, TuneBlocks) else None

    @property
    def cut(self) -> bool:
        """True if inputs are stored activations or features, False if they are images."""
        return self.augment is None and (self.tune == "head" or self.blocks is not None)

    @property
    def cut_blocks(self) -> int | None:
        """The number of blocks applied to stored activations; None without stored activations."""
        return self.blocks if self.cut else None

    @property
    def from_images(self) -> bool:
        return not self.cut

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:
        (gradients,) = super().list_releases(n)
        gradients = replace(
            gradients,
            released="sum of the sampled rows' clipped gradients of all trained parameters "
            "together, one per step",
        )
        if self.probe is None:
            return (gradients,)
        probed = tuple(
            replace(item, name=f"probe {item.name}")
            for item in self.probe.method.list_mechanisms(n)
        )
        return split_budget([(self.probe.share, probed), (1 - self.probe.share, (gradients,))])

    def list_mechanisms(self, n: int) -> tuple[Mechanism, ...]:
        # a normalisation that costs epsilon is part of the probe's releases
        return self.list_releases(n)
