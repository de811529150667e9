"""`head: auto`: a head and its options, chosen by `auto_rule` from public facts of the data.

`auto` makes the releases of the chosen head, at the same privacy cost. With `balanced`, class
counts are also released. The choice depends only on public facts, so choosing costs no privacy. The
facts are n, dimension, classes, labels per example, epsilon, delta, unit of privacy, and the metric
if the user set it. A metric that dpprobe derives from labels has no influence. The rule of `auto`
was fixed on public features; every record and statement names its version.

The dimension is known only after extraction, so jobs that read features first resolve the options
of `auto`. Resolving sets `rule` and `chosen`; other properties are delegated to the head.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from dpprobe.errors import ConfigError
from dpprobe.heads.auto_rule import RULE, balance_options, choose_head, may_have_student
from dpprobe.heads.balance_options import DEFAULT_PRIOR_SHARE
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.gradient_options import PublicHeadFile
from dpprobe.heads.normalisation import NoNormalisation, Normalize, PublicRows
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS, AnyMethod, method_options
from dpprobe.heads.student_options import StudentShare
from dpprobe.privacy.plan import Mechanism, Selection

# Heads that no rule chooses, because they choose options themselves or are not private.
_NOT_CHOSEN = ("auto", "nonprivate", "tuned")


class Options(MethodOptions):
    """A head and options chosen by a rule from public facts."""

    paths: ClassVar[tuple[str, ...]] = ("public", "public_head")

    head: Literal["auto"] = "auto"
    balanced: bool | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Answer as if classes were equally frequent, for data with rare classes that "
        "matter as much as frequent classes. The class frequencies are released, at "
        f"{100 * DEFAULT_PRIOR_SHARE:g}% of the budget. Only for one label per image. If absent, "
        "true exactly if the study names the metric macro_accuracy: for a cell in the dataset, for "
        "a release in `evaluate`.",
    )
    public: PublicRows = None
    public_head: PublicHeadFile = None
    student_share: StudentShare = None
    # The rule sets the three fields below; a study's schema does not contain them.
    normalize: SkipJsonSchema[Normalize] = NoNormalisation()
    rule: SkipJsonSchema[int | None] = None
    chosen: SkipJsonSchema[AnyMethod | None] = None

    @model_validator(mode="after")
    def _check_chosen(self) -> Self:
        if self.student_share is not None and self.public is None:
            raise ValueError(
                f"student_share {self.student_share:g}: a student needs public images; set "
                "`public`, or remove student_share"
            )
        if self.chosen is None:
            if self.normalize != NoNormalisation():
                raise ValueError(
                    "normalize: auto chooses it; remove normalize, or choose another head"
                )
            return self
        if self.rule is None:
            raise ValueError("chosen: needs rule, the rule that chose it; remove chosen")
        if self.chosen.head in _NOT_CHOSEN or self.chosen.head not in HEADS:
            raise ValueError(f"chosen: no rule chooses head {self.chosen.head}; remove chosen")
        if bool(self.balanced) != self.chosen.releases_priors:
            raise ValueError(
                "balanced: must be true exactly if the chosen head releases its class counts; "
                "correct one of them"
            )
        if "normalize" in self.model_fields_set and self.normalize != self.chosen.normalize:
            raise ValueError("normalize: is an option of the chosen head; remove it")
        self._derive(normalize=self.chosen.normalize)
        return self

    def resolve_choice(self, facts: DataFacts, *, exact: bool = False) -> Self:
        """Applies the current rule; raises ConfigError if the options name another rule."""
        if self.chosen is not None:
            return self
        if self.rule not in (None, RULE):
            raise ConfigError(
                f"head auto: the study was planned with rule {self.rule}, but this dpprobe "
                f"has rule {RULE}; run again"
            )
        return self.repeat_choice(RULE, facts, exact=exact)

    def repeat_choice(self, rule: int, facts: DataFacts, *, exact: bool = False) -> Self:
        """Returns the choice of the current rule or one of `auto_rule.EARLIER`."""
        if fault := self.class_fault(facts.classes, multi_label=facts.multi_label):
            raise ConfigError(f"head auto: {fault}")
        values = choose_head(facts, rule, **self._public_options)
        if self.balanced is not None:
            balance = {"class_priors": None, "offset_share": None}
            values |= balance_options(facts, rule) if self.balanced else balance
        if self.student_share is not None and may_have_student(facts, rule):
            values["student_share"] = self.student_share
        chosen = method_options(values)
        if exact and not chosen.is_exact:
            chosen = method_options({**chosen.model_dump(mode="json"), "engine": "exact"})
        balanced = chosen.releases_priors or self.balanced
        asked = {"student_share": self.student_share, **self._public_options}
        return type(self)(balanced=balanced, **asked, rule=rule, chosen=chosen)

    @property
    def _public_options(self) -> dict[str, str | None]:
        return {name: getattr(self, name) for name in self.paths}

    def public_files(self) -> dict[str, str]:
        """Returns each file once, although the chosen head also lists it."""
        return {name: path for name, path in self._public_options.items() if path is not None}

    def identity_options(self) -> dict[str, Any]:
        values = super().identity_options()
        if self.chosen is not None:
            values["chosen"] = self.chosen.identity_options()
        return values

    def fill_paths(self, *, dataset: str, backbone: str) -> Self:
        located = super().fill_paths(dataset=dataset, backbone=backbone)
        if self.chosen is None:
            return located
        chosen = self.chosen.fill_paths(dataset=dataset, backbone=backbone)
        return located.model_copy(update={"chosen": chosen, "normalize": chosen.normalize})

    @property
    def is_undecided(self) -> bool:
        return self.chosen is None

    @property
    def trained_head(self) -> MethodOptions:
        if self.chosen is None:
            raise ConfigError("head auto: the choice needs the features; call `resolve_choice`")
        return self.chosen

    @property
    def multi_label(self) -> bool:
        return self.chosen is None or self.chosen.multi_label

    @property
    def link(self) -> Literal["softmax", "sigmoid", "none"]:
        return self.trained_head.link

    @property
    def private_choices(self) -> str | None:
        return None if self.chosen is None else self.chosen.private_choices

    @property
    def is_exact(self) -> bool:
        return self.chosen is None or self.chosen.is_exact

    @property
    def releases_priors(self) -> bool:
        return bool(self.balanced)

    @property
    def has_student(self) -> bool:
        return self.chosen is not None and self.chosen.has_student

    def class_fault(self, classes: int, *, multi_label: bool) -> str | None:  # noqa: ARG002
        if self.student_share is not None and multi_label:
            return "student_share needs one label per row, but these rows have several; remove it"
        if self.balanced and multi_label:
            return "balanced needs one label per row, but these rows have several; remove it"
        return None

    @property
    def engine_limits(self) -> str | None:
        return self.trained_head.engine_limits

    def list_releases(self, n: int) -> tuple[Mechanism, ...]:
        return self.trained_head.list_releases(n)

    def list_mechanisms(self, n: int) -> tuple[Mechanism, ...]:
        return self.trained_head.list_mechanisms(n)

    def priced_selection(self, n: int) -> Selection | None:
        return self.trained_head.priced_selection(n)


def describe_choice(method: MethodOptions, facts: DataFacts) -> dict[str, Any] | None:
    """Returns the rule that chose the head, and its facts, for the privacy statement."""
    if not isinstance(method, Options):
        return None
    asked = {} if method.balanced is None else {"balanced": method.balanced}
    said = {"rule": f"auto rule {method.rule}", "head": method.trained_head.head}
    return {**said, **asked, **facts.to_dict()}


def asked_options(method: MethodOptions) -> dict[str, Any]:
    """Returns a study's options with the version of the rule, so that a new rule reruns jobs."""
    rule = {"rule": RULE} if method.is_undecided else {}
    return {**method.model_dump(mode="json"), **rule}
