"""Per-example gradients of a batch, computed layer by layer in one backward pass (Bu et al. 2023).

The forward pass records the inputs of layers with trained parameters. The backward pass gives the
gradients of the layers' outputs. From both, the rule for the kind of layer computes squared norms
of per-example gradients. Each gradient, or two factors of it, is kept for weighted sums over rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from dpprobe.devices import use_precision
from dpprobe.errors import ConfigError
from dpprobe.finetune.example_gradients import Call, Rule, forms_gradients, row_norms, squared_norms
from dpprobe.finetune.gradient_rules import WHOLE, rule_of
from dpprobe.finetune.losses import row_losses


@dataclass(frozen=True)
class Layer:
    """A module with trained parameters; `names` maps the parameters to names of gradients."""

    name: str
    module: nn.Module
    rule: Rule
    names: Mapping[str, str]


class Ghost:
    """Computes per-example gradients of `trained`, parameters of a module: inputs -> scores.

    The n-th row of scores must depend only on the n-th row of inputs.
    """

    def __init__(self, module: nn.Module, trained: Mapping[str, nn.Parameter]) -> None:
        self._module, self._trained = module, trained
        self._layers, self._copied = _find_layers(module, trained)

    def find_other_uses(self, inputs: torch.Tensor) -> list[str]:
        """Lists the trained parameters that are used outside the calls of their layers.

        In calls of layers, constants replace the parameters. So a gradient that still reaches a
        parameter comes from another use.
        """
        copies = {inner: parameter.detach() for inner, (_, parameter) in self._copied.items()}
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for layer in self._layers:
                places = [_place_of(layer.module, inner) for inner in layer.names]
                held = [(*place, place[0].get_parameter(place[1])) for place in places]

                def hide(*_: Any, held: Any = held) -> None:
                    for module, name, parameter in held:
                        module._parameters[name] = parameter.detach()

                def show(*_: Any, held: Any = held) -> None:
                    for module, name, parameter in held:
                        module._parameters[name] = parameter

                stack.callback(show)
                stack.callback(layer.module.register_forward_pre_hook(hide).remove)
                stack.callback(layer.module.register_forward_hook(show).remove)
            scores = functional_call(self._module, copies, (inputs,))
        if not scores.requires_grad:
            return []
        parameters = list(self._trained.values())
        reached = torch.autograd.grad(scores.sum(), parameters, allow_unused=True)
        return [name for name, one in zip(self._trained, reached, strict=True) if one is not None]

    def compute_gradients(
        self,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        *,
        sigmoid: bool,
        precision: torch.dtype | None,
    ) -> BatchGradients:
        """Returns per-example gradients of a batch; both passes use `precision`.

        Inputs are [m * v, ...], with the v views of a row adjacent; labels are [m] or [m, K].
        """
        rows = len(labels)
        batch = BatchGradients(rows, inputs.device)
        copies = {
            inner: parameter.detach().expand(len(inputs), *parameter.shape[1:]).requires_grad_()
            for inner, (_, parameter) in self._copied.items()
        }
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(use_precision(inputs.device, precision))
            starts = stack.enter_context(self._note_calls(batch))
            scores = functional_call(self._module, copies, (inputs,))
            losses = row_losses(scores, labels, sigmoid=sigmoid)
        targets = [*starts, *copies.values()]
        # The backward pass ends at the targets: it calls all hooks, but fills no parameter's
        # gradient.
        reached = torch.autograd.grad(losses.sum(), targets, allow_unused=True)
        for (name, parameter), gradient in zip(
            self._copied.values(), reached[len(starts) :], strict=True
        ):
            if gradient is not None:
                summed = gradient.float().reshape(rows, -1, *parameter.shape[1:]).sum(1)
                batch.keep_gradient(name, summed)
        return batch

    @contextmanager
    def _note_calls(self, batch: BatchGradients) -> Iterator[list[Any]]:
        """Records the calls of layers; yields the outputs at which the backward pass may end."""
        starts: list[Any] = []
        calls: Counter[int] = Counter()
        handles = []
        for number, layer in enumerate(self._layers):

            def note_call(
                module: nn.Module,
                inputs: tuple[Any, ...],
                options: dict[str, Any],
                output: Any,
                *,
                number: int = number,
                layer: Layer = layer,
            ) -> Any:
                calls[number] += 1
                result = output if isinstance(output, torch.Tensor) else output[0]
                # An in-place change of a view would bypass the view's hook.
                copied = result._is_view()
                result = result.clone() if copied else result
                tensors = [*inputs, *options.values()]
                if not any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors):
                    starts.append(torch.autograd.graph.get_gradient_edge(result))
                version = inputs[0]._version

                def arrived(gradient: torch.Tensor) -> None:
                    if inputs[0]._version != version:
                        raise ConfigError(
                            f"{layer.name or 'the network'}: its input is overwritten before "
                            "gradients are computed; choose another backbone"
                        )
                    # Attached values and the graph's hooks would form a cycle, never freed.
                    given = tuple(_detach_value(value) for value in inputs)
                    named = {name: _detach_value(value) for name, value in options.items()}
                    call = Call(module, given, named, gradient, batch.rows)
                    batch.add_call(layer, call, alone=calls[number] == 1)

                result.register_hook(arrived)
                if not copied:
                    return None
                return result if isinstance(output, torch.Tensor) else (result, *output[1:])

            handles.append(layer.module.register_forward_hook(note_call, with_kwargs=True))
        try:
            yield starts
        finally:
            for handle in handles:
                handle.remove()


class BatchGradients:
    """Per-example gradients of a batch, each in full or as two factors of a product."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows = rows
        self._squares = torch.zeros(rows, dtype=torch.float64, device=device)
        self._formed: dict[str, torch.Tensor] = {}
        self._factors: list[tuple[str, Layer, Call]] = []

    def add_call(self, layer: Layer, call: Call, *, alone: bool) -> None:
        """Adds a call of a layer; `alone` is True if it is the layer's only call."""
        names = dict(layer.names)
        weight = layer.rule.weight
        if alone and weight in names and not forms_gradients(layer.rule.measure_sizes(call)):
            self._squares += squared_norms(*layer.rule.unfold_positions(call))
            self._factors.append((names.pop(weight), layer, call))
        if names:
            for inner, gradient in layer.rule.compute_gradients(call, names).items():
                self.keep_gradient(names[inner], gradient)

    def keep_gradient(self, name: str, gradient: torch.Tensor) -> None:
        """Adds gradients of rows, [m, ...], to the gradients of a parameter."""
        flat = gradient.reshape(self.rows, -1)
        before = self._formed.get(name)
        self._formed[name] = flat if before is None else before + flat

    def squared_norms(self) -> torch.Tensor:
        """Returns squared norms of the per-example gradients of all parameters, float64 [m]."""
        squares = self._squares.clone()
        for gradient in self._formed.values():
            squares += row_norms(gradient).square()
        return squares

    def add_sum(self, parts: Mapping[str, torch.Tensor], factors: torch.Tensor) -> None:
        """Adds per-example gradients, times the factors [m], to the parameters' flat sums."""
        for name, gradient in self._formed.items():
            parts[name].addmv_(gradient.T, factors)
        for name, layer, call in self._factors:
            layer.rule.add_weight(parts[name], call, factors)


def _place_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, last = name.rpartition(".")
    return module.get_submodule(path), last


def _detach_value(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _find_layers(
    module: nn.Module, trained: Mapping[str, nn.Parameter]
) -> tuple[list[Layer], dict[str, tuple[str, nn.Parameter]]]:
    """Returns the layers, and the parameters to copy for each row, by name in `module`.

    Parameters that broadcast over rows (first dimension 1, as of class tokens) are copied.
    """
    names = {id(parameter): name for name, parameter in trained.items()}
    layers: list[Layer] = []
    copied: dict[str, tuple[str, nn.Parameter]] = {}
    whole: list[str] = []
    for path, child in module.named_modules(remove_duplicate=True):
        if any(path.startswith(f"{parent}.") for parent in whole):
            continue
        is_whole = isinstance(child, WHOLE)
        if is_whole:
            whole.append(path)
        has_children = next(child.children(), None) is not None and not is_whole
        inner = {}
        for local, parameter in child.named_parameters(recurse=is_whole, remove_duplicate=False):
            if id(parameter) not in names:
                continue
            if has_children and parameter.ndim > 1 and len(parameter) == 1:
                copied[f"{path}.{local}" if path else local] = names[id(parameter)], parameter
            else:
                inner[local] = names[id(parameter)]
        if inner:
            layers.append(Layer(path, child, rule_of(child), inner))
    reached = {name for layer in layers for name in layer.names.values()}
    uses = Counter(name for layer in layers for name in layer.names.values())
    uses.update(name for name, _ in copied.values())
    missing = set(trained) - reached - {name for name, _ in copied.values()}
    shared = sorted(name for name, count in uses.items() if count > 1)
    if missing or shared:
        name = min(missing) if missing else shared[0]
        fault = "no part of the network" if missing else "used by several layers"
        raise ConfigError(f"parameter {name}: {fault}; choose another backbone")
    return layers, copied
