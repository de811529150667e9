"""Compares a step of DP fine-tuning with Opacus and torch.func, on equal networks and images.

Each engine runs in a separate process, which measures peak memory in its first step. Later steps
are timed in turns, and ratios of times are printed. A step consists of the clipped sum of one
batch, Gaussian noise and an update. Writes Markdown:

    .venv/bin/python bench/fine_tune.py                 # both networks, a quarter of an hour
    .venv/bin/python bench/fine_tune.py --backbone vit --rounds 3 --no-write
    .venv/bin/python bench/fine_tune.py --device cuda --precision bfloat16 --quick
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import statistics
import warnings
from collections.abc import Callable
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import memory
from clock import Clock, number
from copies import find_checkpoint
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.finetune.fine_tuned_network import FineTunedNetwork, build_network
from dpprobe.finetune.gradients import ClippedSums
from dpprobe.finetune.lora import ChannelAffine
from dpprobe.finetune.options import Options
from dpprobe.heads.normalisation import NoNormalisation
from dpprobe.heads.transform import Transform

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "fine_tune.md"
CLASSES, CLIP, NOISE, RATE = 10, 1.0, 1.0, 1e-4
BACKBONES: dict[str, dict[str, Any]] = {
    # Convolutions have plain padding, for which Opacus has rules.
    "mobilenetv2": {"model": "mobilenetv2_100", "preprocessing": {"size": 128}},
    "vit": {"model": "vit_tiny_patch16_224", "pretrained": False},
}
# Maps a case's name to its backbone, its trained part and the rows per batch.
CASES: dict[str, tuple[str, Any, int]] = {
    "MobileNetV2 at 128 px, last 2 blocks, from the cut": ("mobilenetv2", {"blocks": 2}, 64),
    "MobileNetV2 at 128 px, whole": ("mobilenetv2", "all", 16),
    "ViT-Ti/16 at 224 px (random weights), last 2 blocks, from the cut": (
        "vit",
        {"blocks": 2},
        32,
    ),
    "ViT-Ti/16 at 224 px (random weights), 12 blocks, from the cut": ("vit", {"blocks": 12}, 16),
}
OURS = "dpprobe"
PEERS = ("Opacus hooks", "Opacus ghost", "torch.func")
BESIDE = ("not private", "last layer, with forward pass", "last layer, stored features")
Step = Callable[[], object]
Update = Callable[[torch.Tensor, int], None]  # takes a step's clipped sum and number of rows


class Case(NamedTuple):
    """A measurement by one process: an engine (`way`) on a network, a batch and a device."""

    backbone: str
    tune: Any
    rows: int
    way: str
    device: str
    precision: str
    threads: int


def main() -> None:
    arguments = _arguments()
    lines = [_heading(arguments)]
    cases = list(CASES.items())[: 1 if arguments.quick else None]
    for title, (backbone, tune, rows) in cases:
        if arguments.backbone in (None, backbone):
            lines += measured(title, backbone, tune, rows, arguments)
            print("\n".join(lines[-1:]), flush=True)
            if arguments.write:
                RESULTS.write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--backbone", choices=list(BACKBONES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-write", dest="write", action="store_false")
    parser.add_argument("--quick", action="store_true", help="one case, 3 rounds; write nothing")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.write = 3, False
    return arguments


def _heading(arguments: argparse.Namespace) -> str:
    device = f"CPU, {arguments.threads} thread" + "s" * (arguments.threads > 1)
    if arguments.device == "cuda":
        device = torch.cuda.get_device_name()
    opacus = metadata.version("opacus")
    return (
        "# Fine-tuning: a step\n\n"
        f"`bench/fine_tune.py` on {device}, torch {torch.__version__}, Opacus {opacus}, "
        f"{arguments.precision}; medians of {arguments.rounds} rounds in turns, of processor "
        "time on a CPU. A step: the clipped sum of one batch of Gaussian images, all rows at "
        "once, Gaussian noise of torch, an update. Every way has the same network (batch norms "
        "as frozen scales and shifts), weights, inputs, precision and batch; Opacus has a rule "
        "for scales and shifts. Above 1 a way is slower than dpprobe. Memory is the peak above "
        "what the process held before the first step. No time is given: these machines are "
        "shared.\n"
    )


def measured(
    title: str, backbone: str, tune: Any, rows: int, arguments: argparse.Namespace
) -> list[str]:
    """Measures a case with all engines; returns the lines of the case's table."""
    workers, peaks = {}, {}
    for way in (OURS, *PEERS, *BESIDE):
        asked = {field: getattr(arguments, field) for field in ("device", "precision", "threads")}
        workers[way] = Worker(Case(backbone, tune, rows, way, **asked))
    for way, worker in list(workers.items()):
        try:
            peaks[way] = worker.answer()
        except RuntimeError as error:
            del workers[way]
            print(f"{title}, {way}: {error}", flush=True)
    times: dict[str, list[float]] = {way: [] for way in workers}
    for _ in range(arguments.rounds):
        for way, worker in workers.items():
            times[way].append(worker.step())
    for worker in workers.values():
        worker.close()
    return _table(title, rows, times, peaks)


def _table(
    title: str, rows: int, times: dict[str, list[float]], peaks: dict[str, float]
) -> list[str]:
    middle = {way: statistics.median(values) for way, values in times.items()}
    lines = [
        f"## {title}, {rows} rows\n",
        "| way | time over dpprobe's (rounds) | peak memory | over dpprobe's |",
        "|---|---|---|---|",
    ]
    for way, values in times.items():
        each = [a / b for a, b in zip(values, times[OURS], strict=True)]
        extremes = f" ({number(min(each))} to {number(max(each))})" if way != OURS else ""
        lines.append(
            f"| {way} | {number(middle[way] / middle[OURS])}{extremes} | "
            f"{peaks[way] / 2**20:.0f} MiB | {peaks[way] / max(1.0, peaks[OURS]):.2f} |"
        )
    peers = [way for way in PEERS if way in middle]
    if peers:
        cheapest = min(peers, key=middle.__getitem__)
        lines.append(
            f"\ndpprobe takes {middle[OURS] / middle[cheapest]:.2f} of the time of the cheapest "
            f"peer, {cheapest}.\n"
        )
    return lines


class Worker:
    """A process that takes steps with one engine."""

    def __init__(self, case: Case) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, case))
        self._process.start()
        other.close()

    def answer(self) -> float:
        """Waits for the process's answer: its peak memory, or the seconds of a step."""
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise RuntimeError("the process ended; was it short of memory?") from None
        if isinstance(answer, str):
            self.close()
            raise RuntimeError(answer)
        return float(answer)

    def step(self) -> float:
        self._pipe.send(True)
        return self.answer()

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def _work(pipe: Connection, case: Case) -> None:
    torch.set_num_threads(case.threads)
    warnings.filterwarnings("ignore")
    try:
        step = made(case)
        above = memory.peak(step, case.device)
        step()
        pipe.send(above)
        clock = Clock(case.device)
        while True:
            pipe.recv()
            pipe.send(min(clock.seconds(step) for _ in range(2)))
    except EOFError:
        return
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}"[:300])


def made(case: Case) -> Step:
    """Returns the function that takes a step with a case's engine."""
    torch.manual_seed(0)
    values = dict(BACKBONES[case.backbone])
    if case.backbone == "mobilenetv2":
        checkpoint = find_checkpoint()
        values |= {"checkpoint": str(checkpoint)} if checkpoint else {"pretrained": False}
    options = backbone_options({"family": "timm", **values})
    backbone = loading.load_backbone(options, runtime=Runtime(device="cpu", precision="float32"))

    labels = (torch.arange(case.rows) % CLASSES).to(case.device)
    if case.way.startswith("last layer"):
        head, whole = (build(backbone, tune, case.device) for tune in ("head", "all"))
        return last_layer_step(case, head, whole, labels, _plain_update(head))
    tuned = build(backbone, case.tune, case.device)
    inputs = make_inputs(tuned, case)
    if case.way == OURS:
        return ours_step(tuned, inputs, labels, case.precision, _plain_update(tuned))
    makers = {
        "Opacus hooks": _opacus_hooks,
        "Opacus ghost": _opacus_ghost,
        "torch.func": _functional,
        "not private": _not_private,
    }
    return makers[case.way](tuned, inputs, labels, case.precision)


def build(
    backbone: Backbone, tune: Any, device: str, *, classes: int = CLASSES
) -> FineTunedNetwork:
    return build_network(
        backbone,
        Options(tune=tune, init="lecun_normal"),
        classes=classes,
        seed=0,
        device=device,
        transform=Transform(NoNormalisation()),
    )


def make_inputs(network: FineTunedNetwork, case: Case) -> torch.Tensor:
    shape = (case.rows, *network.shape)
    if network.from_images:
        return torch.randint(0, 256, shape, dtype=torch.uint8).to(case.device)
    return torch.randn(shape).to(case.device)


def _updated(parameters: list[nn.Parameter], total: torch.Tensor, rows: int) -> None:
    """Adds noise to a clipped sum, and updates the parameters with it."""
    total.add_(torch.randn_like(total), alpha=NOISE * CLIP).div_(rows)
    with torch.no_grad():
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, part in zip(parameters, total.split(sizes), strict=True):
            parameter.sub_(part.view_as(parameter), alpha=RATE)


def _plain_update(network: FineTunedNetwork) -> Update:
    parameters = list(network.trained.values())
    return lambda total, rows: _updated(parameters, total, rows)


def ours_step(
    network: FineTunedNetwork,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    precision: Any,
    update: Update,
    *,
    forward: Callable[[torch.Tensor], torch.Tensor] = lambda rows: rows,
) -> Step:
    """Returns dpprobe's step: the clipped sum of all rows after `forward`, then `update`."""
    sums = ClippedSums(
        network, sigmoid=False, max_grad_norm=CLIP, clipping="fixed", precision=precision
    )

    def step() -> None:
        total = torch.zeros(sums.size, device=inputs.device)
        sums.add_rows(total, forward(inputs), labels, None)
        update(total, len(inputs))

    return step


def last_layer_step(
    case: Case,
    network: FineTunedNetwork,
    whole: FineTunedNetwork,
    labels: torch.Tensor,
    update: Update,
) -> Step:
    """Returns a step that trains only the head, with or without the frozen forward pass."""
    images = make_inputs(whole, case)
    body = whole.module.requires_grad_(False)
    body.head = nn.Identity()

    def forward(images: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(), _autocast(images, case.precision):
            features = body(_channels_last(images))
        return features.float().clone()

    if case.way.endswith("stored features"):
        return ours_step(network, forward(images), labels, case.precision, update)
    return ours_step(network, images, labels, "float32", update, forward=forward)


def _channels_last(images: torch.Tensor) -> torch.Tensor:
    """Returns images in channels-last memory order on a CPU, which is faster there."""
    if images.ndim == 4 and images.device.type == "cpu":
        return images.contiguous(memory_format=torch.channels_last)
    return images


def _autocast(tensor: torch.Tensor, precision: str) -> torch.autocast:
    enabled = precision == "bfloat16"
    return torch.autocast(tensor.device.type, dtype=torch.bfloat16, enabled=enabled)


def _autograd_step(
    model: Any,
    optimizer: Any,
    criterion: Any,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    precision: str,
) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        with _autocast(inputs, precision):
            scores = model(inputs)
        criterion(scores.float(), labels).backward()
        optimizer.step()

    return step


def _not_private(
    network: FineTunedNetwork, inputs: torch.Tensor, labels: torch.Tensor, precision: str
) -> Step:
    optimizer = torch.optim.SGD(list(network.trained.values()), lr=RATE)
    loss = nn.CrossEntropyLoss()
    return _autograd_step(
        network.module, optimizer, loss, _channels_last(inputs), labels, precision
    )


def _functional(
    network: FineTunedNetwork, inputs: torch.Tensor, labels: torch.Tensor, precision: str
) -> Step:
    """Returns the step of PyTorch's tutorial: gradients by vmap, norms, and a weighted sum."""
    module, parameters = network.module, list(network.trained.values())
    names = [name for name, value in module.named_parameters() if value.requires_grad]
    chosen = {name: module.get_parameter(name) for name in names}

    def loss(values: dict[str, torch.Tensor], row: torch.Tensor, label: torch.Tensor) -> Any:
        with _autocast(inputs, precision):
            scores = torch.func.functional_call(module, values, (row.unsqueeze(0),))
        return nn.functional.cross_entropy(scores.float(), label.unsqueeze(0))

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        values = {name: parameter.detach() for name, parameter in chosen.items()}
        rows = [value.flatten(1) for value in gradients(values, inputs, labels).values()]
        norms = torch.stack([value.norm(dim=1) for value in rows]).norm(dim=0)
        factors = (CLIP / norms).clamp(max=1.0)
        total = torch.cat([value.T @ factors for value in rows])
        _updated(parameters, total, len(inputs))

    return step


def _for_opacus(network: FineTunedNetwork) -> nn.Module:
    """Returns a copy in training mode, which Opacus requires, without in-place operations."""
    module = copy.deepcopy(network.module).train()
    for child in module.modules():
        if hasattr(child, "inplace"):
            child.inplace = False  # type: ignore[assignment]
    _opacus_rule()
    return module


def _opacus_rule() -> None:
    from opacus.grad_sample import register_grad_sampler

    @register_grad_sampler(ChannelAffine)  # type: ignore[untyped-decorator]
    def affine(layer: Any, activations: list[torch.Tensor], backprops: torch.Tensor) -> Any:
        inputs = activations[0]
        over = (2, 3) if inputs.ndim == 4 else tuple(range(1, inputs.ndim - 1))
        return {
            layer.scale: (inputs * backprops).sum(over),
            layer.shift: backprops.sum(over),
        }


def _opacus_hooks(
    network: FineTunedNetwork, inputs: torch.Tensor, labels: torch.Tensor, precision: str
) -> Step:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model = GradSampleModule(_for_opacus(network), loss_reduction="mean", strict=False)
    optimizer = _opacus_optimizer(DPOptimizer, model, len(inputs))
    return _autograd_step(model, optimizer, nn.CrossEntropyLoss(), inputs, labels, precision)


def _opacus_ghost(
    network: FineTunedNetwork, inputs: torch.Tensor, labels: torch.Tensor, precision: str
) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        _for_opacus(network),
        max_grad_norm=CLIP,
        use_ghost_clipping=True,
        loss_reduction="mean",
        strict=False,
    )
    optimizer = _opacus_optimizer(DPOptimizerFastGradientClipping, model, len(inputs))
    criterion = DPLossFastGradientClipping(
        model, optimizer, nn.CrossEntropyLoss(), loss_reduction="mean"
    )
    return _autograd_step(model, optimizer, criterion, inputs, labels, precision)


def _opacus_optimizer(kind: Any, model: nn.Module, rows: int) -> Any:
    parameters = [value for value in model.parameters() if value.requires_grad]
    return kind(
        torch.optim.SGD(parameters, lr=RATE),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        expected_batch_size=rows,
        loss_reduction="mean",
    )


if __name__ == "__main__":
    main()
