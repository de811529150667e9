"""Models of open_clip, by name with their pretrained tag, or from a local checkpoint.

CLIP: Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision".
OpenAI's weights, and some later weights, were trained with QuickGELU, x * sigmoid(1.702 x), and
give worse features with the usual GELU. For a wrong activation, open_clip only warns, but dpprobe
raises an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from dpprobe.backbones import local_folders
from dpprobe.backbones.backbone import Backbone, Runtime, backbone_fingerprint
from dpprobe.backbones.checkpoints import check_kind, hash_weights
from dpprobe.backbones.hub_files import OPEN_CLIP_WEIGHTS, HubFile, require_files
from dpprobe.backbones.network_options import NO_NETWORK, NetworkOptions, Views, read_model_list
from dpprobe.errors import ConfigError
from dpprobe.options import resolve_path
from dpprobe.similar_names import suggest_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from dpprobe.backbones import network_forward

# Has open_clip's version, models, tags and activations; test_open_clip_models.py updates it.
NAMES = Path(__file__).with_name("open_clip_models.txt")
LIBRARY = "open_clip_torch"
QUICK, USUAL = "quickgelu", "gelu"
_TOKENS_PER_BYTE = 4  # more tokens than any tokenizer makes


class Preprocessing(Views):
    """Overrides of the preprocessing that open_clip resolves from the model."""

    interpolation: Literal["bicubic", "bilinear"] | None = Field(
        None, description="Interpolation of resized images; if absent, the model's interpolation."
    )
    resize_mode: Literal["shortest", "longest", "squash"] | None = Field(
        None,
        description="shortest: the shorter side becomes size, and the centre is cropped. longest: "
        "the longer side becomes size, and borders are black. squash: both sides become size.",
    )

    @model_validator(mode="after")
    def _check_channels(self) -> Preprocessing:
        self.check_channels(3)
        return self


class Options(NetworkOptions):
    """The image tower of an open_clip model; the features are its image embeddings."""

    imports = ("open_clip.transform",)

    family: Literal["open_clip"] = "open_clip"
    model: str = Field(
        min_length=1,
        description="open_clip's name, such as ViT-B-32-quickgelu; the tag of the weights may be "
        "appended after a dot. hf-hub:OWNER/NAME is a repository of the Hub, local-dir:FOLDER a "
        "folder with open_clip_config.json and weights.",
    )
    pretrained: str | Literal[False] | None = Field(
        None,
        description="Tag of open_clip's weights; false means random weights from a fixed seed, "
        "only for trials.",
    )
    quick_gelu: bool | None = Field(
        None,
        description="True if the activation is QuickGELU. If absent, the model's name decides, "
        "also for a local checkpoint, because a file of weights does not state its activation.",
    )
    with_projection: bool = Field(
        True,
        exclude_if=lambda value: value,
        description="False for features before the projection into the space that images share "
        "with text. Text embeddings and zero-shot results then do not exist.",
    )
    preprocessing: Preprocessing = Preprocessing()

    @model_validator(mode="after")
    def _check_weights(self) -> Options:
        _, named = _split_name(self.model)
        if named and self.pretrained not in (None, named):
            raise ValueError(
                f"model {self.model} and pretrained {self.pretrained} choose different weights; "
                "remove one of the two"
            )
        if self.checkpoint is not None and (named or self.pretrained):
            raise ValueError(
                f"pretrained {named or self.pretrained} and a checkpoint are both set; keep one of "
                "them"
            )
        if ":" in self.model and (self.pretrained or self.checkpoint is not None):
            raise ValueError(
                f"model {self.model} includes its weights; remove pretrained and checkpoint"
            )
        if not (named or self.checkpoint or ":" in self.model) and self.pretrained is None:
            raise ValueError(
                f"pretrained: missing; set a tag of {self.model}, or a checkpoint, or "
                "`pretrained: false` for random weights"
            )
        return self

    @property
    def architecture(self) -> str:
        return local_folders.expand_name(_split_name(self.model)[0])

    @property
    def fingerprinted_architecture(self) -> str:
        """The architecture; a folder's path is replaced by the SHA-256 of its configuration."""
        return local_folders.hide_folder(self.architecture, local_folders.OPEN_CLIP_CONFIG)

    @property
    def tag(self) -> str | None:
        """The pretrained tag in open_clip's spelling; None for a checkpoint or random weights."""
        tag = _split_name(self.model)[1] or self.pretrained or None
        return None if tag is None else tag.lower().replace("-", "_")

    def check_files(self) -> None:
        self.check_checkpoint()
        local_folders.check_folder(
            self.model, local_folders.OPEN_CLIP_CONFIG, weights=self.pretrained is not False
        )
        if (known := known_models()) is not None:
            self.check_name(known)

    def check_name(self, known: Mapping[str, KnownModel]) -> None:
        """Checks the model's name, tag and activation against a list; skips folders and the Hub."""
        if ":" in self.model:
            return
        model = known.get(self.architecture)
        if model is None:
            raise ConfigError(
                f"model: open_clip has no model {self.architecture!r}; "
                f"{suggest_names(self.architecture, known)}"
            )
        if self.tag is not None:
            self._check_tag(model, known)

    def _check_tag(self, model: KnownModel, known: Mapping[str, KnownModel]) -> None:
        trained = model.tags.get(str(self.tag))
        if trained is None:
            tags = ", ".join(model.tags) or "none; write `pretrained: false`, or a checkpoint"
            raise ConfigError(
                f"pretrained: open_clip has no weights {self.tag!r} of {self.architecture}; "
                f"{suggest_names(str(self.tag), model.tags)}: it has {tags}"
            )
        built = model.activation if self.quick_gelu is None else _name_activation(self.quick_gelu)
        # A model name with QuickGELU is correct, even if the list of weights does not mention it.
        wanted = QUICK if QUICK in (trained, model.activation) else USUAL
        if built == wanted:
            return
        twin = f"{self.architecture}-{QUICK}"
        right = (
            f"write `model: {twin}`"
            if self.quick_gelu is None and self.tag in getattr(known.get(twin), "tags", ())
            else f"write `quick_gelu: {str(wanted == QUICK).lower()}`"
        )
        raise ConfigError(
            f"model: the weights {self.tag} of {self.architecture} were trained with {wanted}, "
            f"but this model computes {built}, so its features would be wrong; {right}"
        )

    def input_files(self) -> tuple[str, ...]:
        folder = local_folders.list_files(self.model, local_folders.OPEN_CLIP_CONFIG)
        return (*super().input_files(), *folder)

    @property
    def reads_text(self) -> bool:
        """True if text embeddings exist and can be computed.

        Text embeddings are comparable only with projected image features. Tokenizers from the Hub
        need the package transformers.
        """
        return self.with_projection and (
            _has_own_tokenizer(self.architecture) or find_spec("transformers") is not None
        )

    def list_warnings(self) -> list[str]:
        if self.reads_text:
            return []
        if not self.with_projection:
            return [
                "with_projection: false: features before the projection share no space with text, "
                "so text embeddings and zero-shot results are left out. A second backbone of the "
                "same model with its projection gives them"
            ]
        return [
            f"reading text with {self.architecture} needs the package transformers, which is not "
            "installed: text embeddings are left out"
        ]

    def text_params(self) -> dict[str, Any]:
        images = ("preprocessing", "layers", "token", "grey_bits", "jpeg_decoding")
        return {k: v for k, v in self.extraction_params().items() if k not in images}

    def extraction_params(self) -> dict[str, Any]:
        """Returns the options that determine features; `Options` cannot be recreated from them."""
        values = super().extraction_params()
        del values["checkpoint"]
        hidden = local_folders.hide_folder(self.model, local_folders.OPEN_CLIP_CONFIG)
        return values | {"model": hidden}


class KnownModel(NamedTuple):
    """A model's activation, and the activation of each tag."""

    activation: str
    tags: dict[str, str]


def _split_name(model: str) -> tuple[str, str | None]:
    """Splits `name.tag` into name and tag; names with a colon (Hub or folder) have no tag."""
    name, _, tag = ("", "", "") if ":" in model else model.partition(".")
    return (name, tag or None) if name else (model, None)


def _name_activation(quick: bool) -> str:
    return QUICK if quick else USUAL


def known_models() -> dict[str, KnownModel] | None:
    """Reads the list of models; None if another version of open_clip is installed."""
    listed = read_model_list(NAMES, LIBRARY)
    if listed is None:
        return None
    models = {}
    for name, activation, *tags in listed:
        pairs = (tag.partition(":") for tag in tags)
        models[name] = KnownModel(activation, {tag: trained for tag, _, trained in pairs})
    return models


def _ask_open_clip() -> dict[str, KnownModel]:
    """Lists the models of the installed open_clip."""
    import open_clip
    from open_clip.pretrained import list_pretrained_tags_by_model

    def read_activation(config: Mapping[str, Any]) -> str:
        return _name_activation(bool(config.get("quick_gelu")))

    return {
        name: KnownModel(
            read_activation(open_clip.get_model_config(name)),
            {
                tag: read_activation(open_clip.get_pretrained_cfg(name, tag))
                for tag in list_pretrained_tags_by_model(name)
            },
        )
        for name in open_clip.list_models()
    }


def _has_own_tokenizer(architecture: str) -> bool:
    """True if the installed open_clip describes the model without a tokenizer from the Hub."""
    package = find_spec("open_clip")  # not imported: planning needs no torch
    if package is None or package.origin is None:
        return False
    path = Path(package.origin).with_name("model_configs") / f"{architecture}.json"
    if folder := local_folders.list_files(architecture, local_folders.OPEN_CLIP_CONFIG):
        path = Path(folder[0])
    try:
        values = json.loads(path.read_bytes())
        text = values.get("model_cfg", values)["text_cfg"]
    except (OSError, ValueError, KeyError, AttributeError):
        return False  # `check_files` and loading report a folder that cannot be read
    return text.keys().isdisjoint(("hf_tokenizer_name", "hf_model_name"))


def list_hub_files(options: Options) -> list[HubFile]:
    """Lists the files that open_clip downloads; tokenizers only if transformers is installed."""
    import open_clip  # slow import: torch

    schema, _, repository = options.model.partition(":")
    if repository:
        if schema != "hf-hub":
            return []
        weights = HubFile("weights", repository, OPEN_CLIP_WEIGHTS)
        return [HubFile("config", repository, ("open_clip_config.json",)), weights]
    fetched = []
    if options.tag is not None:
        place = open_clip.get_pretrained_cfg(options.architecture, options.tag).get("hf_hub", "")
        repository, _, file = place.rpartition("/")
        names = (str(Path(file).with_suffix(".safetensors")), file) if file else OPEN_CLIP_WEIGHTS
        fetched += [HubFile("weights", repository, names)] if repository else []
    text = (open_clip.get_model_config(options.architecture) or {}).get("text_cfg", {})
    if find_spec("transformers") is not None:
        if named := text.get("hf_model_name"):
            fetched.append(HubFile("config", named, ("config.json",)))
        if named := text.get("hf_tokenizer_name"):
            fetched.append(HubFile("tokenizer", named, ("tokenizer_config.json", "tokenizer.json")))
    return fetched


def describe(options: Options, device: str) -> dict[str, int]:
    """Returns the numbers of features and blocks; see `timm_models.describe`."""
    runtime = Runtime(device=device, precision="float32")
    from dpprobe.backbones import network_forward  # slow import: torch

    network = _make_network(_create_model(options, shapes_on=device).visual, options, runtime)[0]
    return network_forward.describe_network(network)


def load(options: Options, runtime: Runtime) -> Backbone:
    """Loads the image tower only; raises ConfigError if the options do not fit the model."""
    from dpprobe.backbones.image_preprocessing import ToBytes, make_train_crop  # slow import: torch

    model = _create_model(options)
    visual, activation = model.visual, _described_activation(model)
    del model
    weights_sha256 = hash_weights(options, visual)
    views = options.preprocessing
    network, resolved, steps = _make_network(visual, options, runtime)
    height, width = resolved["size"]
    preprocessing = {
        "color": "RGB",
        **{k: list(value) if isinstance(value, tuple) else value for k, value in resolved.items()},
        **views.resolved_views(),
        "activation": activation,
    }
    return Backbone(
        **vars(network),
        preprocessing=preprocessing,
        weights_sha256=weights_sha256,
        fingerprint=backbone_fingerprint(
            options,
            preprocessing=preprocessing,
            weights_sha256=weights_sha256,
            libraries=[LIBRARY, "pillow", "timm", "torch", "torchvision"],
            architecture=options.fingerprinted_architecture,
            pretrained_tag=options.tag,
            exclude=frozenset({"checkpoint", "model", "preprocessing", "pretrained", "quick_gelu"}),
            precision=runtime.precision,
        ),
        transform=ToBytes(mode="RGB", steps=steps),
        train_transform=make_train_crop(
            views, mode="RGB", size=(height, width), interpolation=resolved["interpolation"]
        ),
        architecture=options.fingerprinted_architecture,
        pretrained_tag=options.tag,
        trained=options.pretrained is not False,
    )


def _make_network(
    visual: Any, options: Options, runtime: Runtime
) -> tuple[network_forward.Network, dict[str, Any], Callable[[Any], torch.Tensor]]:
    from dpprobe.backbones import network_forward  # slow import: torch

    resolved = dict(visual.preprocess_cfg)
    size = resolved["size"]
    resolved["size"] = (size, size) if isinstance(size, int) else tuple(size)
    steps, mean, std = _split_transform(resolved)
    if not options.with_projection:
        _remove_projection(visual, options.architecture)
    network = network_forward.prepare_network(
        wrap_tower(visual),
        options,
        runtime,
        name=options.architecture,
        channels=3,
        size=resolved["size"],
        mean=mean,
        std=std,
        flip=options.preprocessing.flip,
    )
    return network, resolved, steps


@dataclass(frozen=True, kw_only=True)
class TextEncoder:
    """A model's text tower.

    Attributes:
      encode: tokens of `make_tokenizer` -> unit rows float32 [sentences, dimension] on the device.
      logit_scale: the factor that multiplies cosines in logits: exp of the model's parameter.
      logit_bias: the number added to the scaled cosines; None if the model adds nothing.
      weights_sha256: the hash of the checkpoint's file, or of all weights.
      fingerprint: a hash of everything that decides text embeddings.
    """

    encode: Callable[[torch.Tensor], torch.Tensor]
    logit_scale: float
    logit_bias: float | None
    weights_sha256: str
    fingerprint: str


def load_text(options: Options, runtime: Runtime) -> TextEncoder:
    """Loads the text tower in float32; raises ConfigError if the options do not fit the model."""
    import torch

    model = _create_model(options)
    activation = _described_activation(model)
    weights_sha256 = hash_weights(options, model)
    model = model.to(runtime.device).eval().requires_grad_(False)

    @torch.inference_mode()
    def encode_tokens(tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = model.encode_text(tokens.to(runtime.device), normalize=True)
        return embedded.float()

    bias = getattr(model, "logit_bias", None)
    return TextEncoder(
        encode=encode_tokens,
        logit_scale=float(model.logit_scale.exp()),
        logit_bias=None if bias is None else float(bias),
        weights_sha256=weights_sha256,
        fingerprint=backbone_fingerprint(
            options,
            preprocessing={"activation": activation, "part": "text"},
            weights_sha256=weights_sha256,
            libraries=[LIBRARY, "torch"],
            architecture=options.fingerprinted_architecture,
            pretrained_tag=options.tag,
            exclude=frozenset(
                {
                    "checkpoint",
                    "grey_bits",
                    "jpeg_decoding",
                    "layers",
                    "model",
                    "preprocessing",
                    "pretrained",
                    "quick_gelu",
                    "token",
                }
            ),
        ),
    )


def make_tokenizer(options: Options) -> Callable[[Sequence[str]], torch.Tensor]:
    """Returns open_clip's tokenizer, changed to raise ConfigError instead of cutting a sentence."""
    import open_clip

    require_files(each for each in list_hub_files(options) if each.part == "tokenizer")
    try:
        tokenizer = open_clip.get_tokenizer(options.architecture)
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        line = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"model: the tokenizer of {options.architecture} cannot be loaded ({line}); it needs "
            "the package transformers and files of the Hugging Face Hub: install the package and "
            "fetch the files once on a machine with a network, or choose a model that uses "
            "OpenAI's tokenizer, such as ViT-B-32-quickgelu"
        ) from error

    def tokenize_sentences(sentences: Sequence[str]) -> torch.Tensor:
        tokens: torch.Tensor = tokenizer(list(sentences))
        limit = tokens.shape[1]
        # Tokenizers pad rows to equal length, so the most frequent token is padding.
        room = limit + _TOKENS_PER_BYTE * max(len(sentence.encode()) for sentence in sentences)
        whole = tokenizer(list(sentences), context_length=room)
        filling = whole.flatten().mode().values
        counts, kept = ((rows != filling).sum(dim=1) for rows in (whole, tokens))
        for sentence, count, rest in zip(sentences, counts.tolist(), kept.tolist(), strict=True):
            if count > rest:
                raise ConfigError(
                    f"prompts: {sentence!r} has {count} tokens, but {options.architecture} "
                    f"reads at most {limit}; shorten this prompt"
                )
        return tokens

    return tokenize_sentences


def _create_model(options: Options, *, shapes_on: str | None = None) -> Any:
    """Creates the complete model on the CPU; with `shapes_on`, only shapes on that device."""
    import open_clip
    import torch

    from dpprobe.backbones.network_forward import one_line  # slow import: torch

    if known_models() is None:
        options.check_name(_ask_open_clip())
    views = options.preprocessing
    overrides: dict[str, Any] = views.model_dump(
        exclude_none=True, include={"interpolation", "resize_mode"}
    )
    constants = {name: views.list_constants(name, 3) for name in ("mean", "std")}
    overrides |= {name: tuple(values) for name, values in constants.items() if values}
    forced = {} if options.quick_gelu is None else {"quick_gelu": options.quick_gelu}
    weights = options.tag if shapes_on is None else None
    if options.checkpoint is not None:
        path = resolve_path(options.checkpoint)
        check_kind(path)
        weights = str(path.absolute())
    parts = ("config",) if shapes_on is not None else ("config", "weights")
    require_files(each for each in list_hub_files(options) if each.part in parts)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # equal random weights for every shard
            return open_clip.create_model(
                options.architecture,
                pretrained=weights,
                load_weights=options.pretrained is not False
                and (shapes_on is None or weights is not None),
                device=shapes_on or "cpu",
                pretrained_text=False,
                force_image_size=views.size,
                force_preprocess_cfg=overrides,
                **forced,
            )
    except Exception as error:  # unpickling a checkpoint raises errors of any kind
        remedy = "check the name, the checkpoint and preprocessing.size"
        if options.tag is not None or ":" in options.model:
            remedy = f"check the name and preprocessing.size; {NO_NETWORK}"
        raise ConfigError(
            f"model: open_clip cannot create {options.model} ({one_line(error)}); {remedy}"
        ) from error


def _described_activation(model: Any) -> str:
    """Returns the built model's activation; ResNets and timm's towers choose it themselves."""
    from open_clip.transformer import QuickGELU

    return _name_activation(any(isinstance(module, QuickGELU) for module in model.modules()))


def _split_transform(
    resolved: Mapping[str, Any],
) -> tuple[Callable[[Any], torch.Tensor], list[float], list[float]]:
    """Splits open_clip's evaluation transform: steps up to uint8, then mean and std."""
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from torchvision.transforms import Compose, Normalize, PILToTensor

    *steps, _, normalise = image_transform_v2(PreprocessCfg(**resolved), is_train=False).transforms
    if not isinstance(normalise, Normalize):
        raise TypeError(f"open_clip's transform ends in {normalise}, not in a normalisation")
    return Compose([*steps, PILToTensor()]), list(normalise.mean), list(normalise.std)


def _remove_projection(visual: Any, name: str) -> None:
    """Makes an image tower return its pooled features before the projection.

    A ViT then returns its pooled token after the last norm; a ResNet, the heads of its attention
    pooling; a timm tower, the input of its last linear layer or MLP. Raises ConfigError for a tower
    without a projection.
    """
    import torch

    names = ("head", "trunk", "attnpool")  # the first two belong to timm's towers
    parts: list[Any] = [getattr(visual, each, None) for each in names]
    head, trunk, attention = parts
    if isinstance(getattr(visual, "proj", None), torch.Tensor):
        visual.proj = None
    elif hasattr(attention, "c_proj"):
        # the attention reads the weights of `c_proj`, which must therefore stay a linear layer
        width, device = attention.c_proj.in_features, attention.c_proj.weight.device
        identity = torch.nn.Linear(width, width, device=device).requires_grad_(False)
        identity.weight.copy_(torch.eye(width))
        identity.bias.zero_()
        attention.c_proj = identity
    elif last := [key for key in ("proj", "mlp") if hasattr(head, key)]:
        setattr(head, last[0], torch.nn.Identity())
    elif hasattr(getattr(head, "pool", None), "proj"):
        head.pool.proj = torch.nn.Identity()
    elif getattr(trunk, "num_classes", 0):  # the classifier of timm's model projects
        trunk.reset_classifier(0)
    else:
        raise ConfigError(
            f"with_projection: the image tower of {name} ends without a projection, so its "
            "features cannot be taken before one; remove with_projection"
        )


def wrap_tower(visual: Any) -> torch.nn.Module:
    """Wraps the image tower, which may return embeddings and tokens, to return only embeddings."""
    import torch

    class Tower(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.visual = visual

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            output = self.visual(images)
            embedded: torch.Tensor = output[0] if isinstance(output, tuple) else output
            return embedded

    return Tower()
