"""Writes docs/drawings/*.svg: networks as their configurations build them, and votes as matrices give them.

``python -m docs.drawings`` writes them anew; a test compares them with the code.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsule_lab.commands import compose
from capsule_lab.config import build
from capsule_lab.layers import ConvStack
from capsule_lab.networks import reconstructs
from capsule_lab.routing import AbstractRouting
from capsule_lab.types import Capsules, DataSpec

FOLDER = Path(__file__).parent / "drawings"
MNIST = DataSpec((1, 28, 28), 10)
SMALLNORB = DataSpec((2, 32, 32), 5)
NETWORKS = {  # model, which is also the name of the file: the images it is drawn for
    "capsnet": MNIST,
    "capsnet_slim": MNIST,
    "em_caps_paper": SMALLNORB,
    "em_caps": MNIST,
    "efficient_capsnet": MNIST,
    "transforming_autoencoder": DataSpec((1, 28, 28), 10, change=(2,)),
}
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1b1b1b}.b{font-weight:600}.s{fill:#666}"
    ".map{fill:#9ecae1;stroke:#3182bd}.caps{fill:#fdd0a2;stroke:#e6550d}.units{fill:#ddd;stroke:#777}"
    "line,path{stroke:#777;fill:none}.paper{fill:#fff}"
)


@dataclass
class Layer:
    """A layer as it is drawn: kind of box, height of the box, and lines of text below it."""

    box: str
    side: float
    lines: list[str]


class Call(NamedTuple):
    """A part of the network, its name, and what it returned."""

    name: str
    part: nn.Module
    output: Any

    @property
    def is_layer_of_capsules(self) -> bool:
        """False for a stack of layers, and for the routing in a layer."""
        is_inside = isinstance(self.part, AbstractRouting | ConvStack)
        return isinstance(self.output, Capsules) and not is_inside


def layers_of(network: nn.Module, spec: DataSpec) -> list[Layer]:
    """Run the network on one image, and return its layers in the order in which they compute."""
    network.eval()
    generator = torch.Generator().manual_seed(0)
    image = torch.rand(1, *spec.image_shape, generator=generator, requires_grad=True)
    calls = _calls(network, image, spec)
    capsule_layers = tuple(f"{call.name}." for call in calls if call.is_layer_of_capsules)
    channels, height, width = spec.image_shape
    size = f"{height}x{width}x{channels}"
    layers = [Layer("map", height, ["image", size])]
    for call in calls:
        layer = None if call.name.startswith(capsule_layers) else _layer(call, image)
        if layer is not None:
            layers.append(layer)
    if spec.change:
        layers.append(Layer("map", height, ["image after the change", size]))
    return layers


def _calls(network: Any, image: Tensor, spec: DataSpec) -> list[Call]:
    """Return the parts of the network in the order in which they return."""
    calls: list[Call] = []
    names = {part: name for name, part in network.named_modules()}

    def record(part: nn.Module, _: Any, output: Any) -> None:
        calls.append(Call(names[part], part, output))

    parts = [part for part in names if part is not network]
    handles = [part.register_forward_hook(record) for part in parts]
    changes = [torch.zeros(1, *spec.change)] if spec.change else []
    output = network(image, *changes)
    if reconstructs(network):
        network.reconstruct(output, torch.zeros(1, dtype=torch.int64))
    for handle in handles:
        handle.remove()
    return calls


def _layer(call: Call, image: Tensor) -> Layer | None:
    """Return a part as it is drawn; ``None`` for activation functions, containers and the like."""
    name, part, output = call
    if call.is_layer_of_capsules:
        return _capsules(part, output, image)
    if hasattr(part, "kernel_size") and output.dim() == 4:
        _, channels, side, columns = output.shape
        seen = f"each sees {_field(output[0, :, side // 2, side // 2], image)}"
        lines = ["convolution", f"{side}x{columns}x{channels}", seen, _weights(part)]
        return Layer("map", side, lines)
    if isinstance(part, nn.Linear):
        kind = "decoder" if name.startswith("decoder") else "dense"
        return Layer("units", 10, [kind, f"{output.shape[-1]:,} units", _weights(part)])
    # units of each capsule of a pair network
    if hasattr(part, "weight") and output.dim() == 3:
        kind, _, _ = name.partition(".")
        count = f"{len(output)} capsules of {output.shape[-1]}"
        return Layer("caps", 10, [kind, count, _weights(part)])
    return None


def _capsules(part: nn.Module, output: Capsules, image: Tensor) -> Layer:
    count, dim = output.poses.shape[1:]
    lines = [_words(part, "Capsules") + " capsules", f"{count:,} of {dim} components"]
    routings = [each for each in part.modules() if isinstance(each, AbstractRouting)]
    if routings:
        lines.append(f"{_words(routings[0], 'Routing')} routing")
        iterations = routings[0].options.get("iterations")
        if iterations:
            lines.append(f"{iterations} iterations")
    else:
        # those at the border see less
        some = output.poses[0, :: max(1, count // 32)]
        fields = [_field(pose, image) for pose in some]
        largest = max(fields, key=lambda field: (len(field), field))
        lines.append(f"each sees {largest}")
    return Layer("caps", max(6.0, math.sqrt(count)), [*lines, _weights(part)])


def _words(part: nn.Module, ending: str) -> str:
    """Return the name of a class without its ending, as words: ``Self Attention``."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", type(part).__name__.removesuffix(ending))


def _field(output: Tensor, image: Tensor) -> str:
    """Return the pixels that change an output, from its gradient: ``9x9 pixels``."""
    (gradient,) = torch.autograd.grad(output.sum(), image, retain_graph=True)
    _, rows, columns = gradient[0].nonzero(as_tuple=True)
    height = int(rows.max() - rows.min()) + 1
    width = int(columns.max() - columns.min()) + 1
    return f"{height}x{width} pixels"


def _weights(part: nn.Module) -> str:
    count = sum(each.numel() for each in part.parameters())
    return f"{count:,} weights"


def drawing(layers: list[Layer], title: str) -> str:
    """Return an SVG of layers from left to right."""
    step = 184
    middle = 62
    shapes = []
    for number, layer in enumerate(layers):
        x = 92 + number * step
        if number:
            shapes.append(f'<path d="M{x - step + 48} {middle}H{x - 48}"/>')
        side = 12 + 1.6 * min(layer.side, 48)
        for shift in (6, 3, 0):
            left = x - side / 2 + shift
            top = middle - side / 2 - shift
            shapes.append(
                f'<rect class="{layer.box}" x="{left:.1f}" y="{top:.1f}" '
                f'width="{side:.1f}" height="{side:.1f}"/>'
            )
        for line, text in enumerate(layer.lines):
            style = ("b", "", "s", "s", "s")[line]
            shapes.append(_text(style, x, 132 + 17 * line, text))
    most_lines = max(len(layer.lines) for layer in layers)
    return svg(len(layers) * step, 122 + 17 * most_lines, title, shapes)


def _text(style: str, x: int, y: int, text: str) -> str:
    return f'<text class="{style}" x="{x}" y="{y}" text-anchor="middle">{text}</text>'


def svg(
    width: float, height: float, title: str, shapes: list[str], *, is_fixed: bool = False
) -> str:
    """Return an SVG, as wide as its page, or of a fixed size, so that its text is as large as that of the page."""
    size = f' width="{width:.0f}" height="{height:.0f}"' if is_fixed else ""
    box = f'viewBox="0 0 {width:.0f} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}{size} role="img">'
    paper = f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>'
    lines = [head, f"<title>{title}</title>", f"<style>{_STYLE}</style>", paper, *shapes]
    return "\n".join([*lines, "</svg>", ""])


COLOURS = {"rectangle": "#3182bd", "triangle": "#e6550d"}
PARTS = {"rectangle": "-26,-16 26,-16 26,16 -26,16", "triangle": "-26,16 26,16 0,-16"}
WHOLES = {  # pose of each part in the whole, as rotation in degrees, right and down
    "house": {"rectangle": (0, 0, 16), "triangle": (0, 0, -16)},
    "boat": {"rectangle": (0, 0, 22), "triangle": (135, 14, -20)},
}
SEEN = (20, 90, 100)  # pose of a house in the picture


def votes() -> str:
    """Return an SVG of the votes of two parts for two wholes: they agree for the whole that is in the picture."""
    shapes = []
    poses = {}
    for part, in_house in WHOLES["house"].items():
        poses[part] = _matrix(*SEEN) @ _matrix(*in_house)
        place = f'transform="{_transform(poses[part])}"'
        shapes.append(f'<polygon class="map" points="{PARTS[part]}" {place}/>')
        shapes.append(f'<g {place}><path d="M0 0H18M0 0V18" style="stroke:#08519c"/></g>')
    shapes.append(_text("b", 90, 190, "two parts and their poses"))
    for number, (whole, known) in enumerate(WHOLES.items(), start=1):
        shift = _matrix(0, 260 * number, 0)
        cast = {}
        for part in PARTS:
            cast[part] = poses[part] @ torch.linalg.inv(_matrix(*known[part]))
            style = f"fill:none;stroke:{COLOURS[part]};stroke-width:1.5"
            for other, in_whole in known.items():
                place = _transform(shift @ cast[part] @ _matrix(*in_whole))
                shapes.append(
                    f'<polygon points="{PARTS[other]}" transform="{place}" style="{style}"/>'
                )
        apart = float((cast["rectangle"] - cast["triangle"])[:2, 2].norm())
        x = 90 + 260 * number
        shapes.append(_text("b", x, 190, f"votes for a {whole}"))
        shapes.append(_text("s", x, 207, f"{apart:.0f} pixels apart"))
    return svg(720, 216, "Votes of a rectangle and a triangle for a house and for a boat", shapes)


def _matrix(degrees: float, right: float, down: float) -> Tensor:
    angle = math.radians(degrees)
    rows = [
        [math.cos(angle), -math.sin(angle), right],
        [math.sin(angle), math.cos(angle), down],
        [0, 0, 1],
    ]
    return torch.tensor(rows, dtype=torch.float64)


def _transform(pose: Tensor) -> str:
    values = [f"{value:.4f}" for value in pose[:2].T.flatten().tolist()]
    return f"matrix({' '.join(values)})"


def drawings() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every file."""
    yield "votes.svg", votes()
    for model, spec in NETWORKS.items():
        torch.manual_seed(0)
        overrides = [f"model={model}"]
        if spec.change:
            overrides.append("data=mnist_pairs")
        network = build.build_module(compose("train", overrides), spec).network
        yield f"{model}.svg", drawing(layers_of(network, spec), f"The network of model={model}")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in drawings():
        (FOLDER / name).write_text(text)
