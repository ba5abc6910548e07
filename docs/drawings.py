"""Writes docs/drawings/*.svg: networks as their configurations build them, and votes as matrices give them.

``python -m docs.drawings`` writes them anew; a test compares them with the code.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capsule_lab.commands import compose
from capsule_lab.config import build
from capsule_lab.layers import ConvStack
from capsule_lab.networks import reconstructs
from capsule_lab.routing import AbstractRouting
from capsule_lab.types import Capsules, DataSpec

FOLDER = Path(__file__).parent / "drawings"
MNIST, SMALLNORB = DataSpec((1, 28, 28), 10), DataSpec((2, 32, 32), 5)
NETWORKS = {  # file: model and the images it is drawn for
    "capsnet": ("capsnet", MNIST),
    "capsnet_slim": ("capsnet_slim", MNIST),
    "em_caps_paper": ("em_caps_paper", SMALLNORB),
    "em_caps": ("em_caps", MNIST),
    "efficient_capsnet": ("efficient_capsnet", MNIST),
    "transforming_autoencoder": (
        "transforming_autoencoder",
        DataSpec((1, 28, 28), 10, change=(2,)),
    ),
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


def layers_of(network: nn.Module, spec: DataSpec) -> list[Layer]:
    """Run the network on one image, and return its layers in the order in which they compute."""
    network.eval()
    found: list[tuple[str, nn.Module, Any]] = []
    names = {part: name for name, part in network.named_modules()}
    handles = [
        part.register_forward_hook(
            lambda part, _, output: found.append((names[part], part, output))
        )
        for part in names
        if part is not network
    ]
    image = torch.rand(
        1, *spec.image_shape, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    output = network(image, torch.zeros(1, *spec.change)) if spec.change else network(image)
    if reconstructs(network):
        network.reconstruct(output, torch.zeros(1, dtype=torch.int64))
    for handle in handles:
        handle.remove()
    capsule_layers = [name for name, part, output in found if _is_capsules(part, output)]
    height, width = spec.image_shape[1:]
    drawn = [Layer("map", height, ["image", f"{height}x{width}x{spec.image_shape[0]}"])]
    for name, part, output in found:
        if any(name.startswith(f"{layer}.") for layer in capsule_layers):
            continue
        if _is_capsules(part, output):
            drawn.append(_capsules(part, output, image))
        elif hasattr(part, "kernel_size") and output.dim() == 4:
            side, channels = output.shape[2], output.shape[1]
            seen = f"each sees {_field(output[0, :, side // 2, side // 2], image)}"
            lines = ["convolution", f"{side}x{output.shape[3]}x{channels}", seen, _weights(part)]
            drawn.append(Layer("map", side, lines))
        elif isinstance(part, nn.Linear):
            kind = "decoder" if name.startswith("decoder") else "dense"
            drawn.append(Layer("units", 10, [kind, f"{output.shape[-1]:,} units", _weights(part)]))
        elif (
            hasattr(part, "weight") and output.dim() == 3
        ):  # units of each capsule of a pair network
            kind = name.partition(".")[0]
            drawn.append(
                Layer(
                    "caps",
                    10,
                    [kind, f"{len(output)} capsules of {output.shape[-1]}", _weights(part)],
                )
            )
    return drawn + (
        [Layer("map", height, ["image after the change", *drawn[0].lines[1:]])]
        if spec.change
        else []
    )


def _is_capsules(part: nn.Module, output: Any) -> bool:
    """Whether this is a layer of capsules; a stack of layers and the routing in a layer are not."""
    return isinstance(output, Capsules) and not isinstance(part, AbstractRouting | ConvStack)


def _capsules(part: nn.Module, output: Capsules, image: Tensor) -> Layer:
    count, dim = output.poses.shape[1:]
    lines = [_words(part, "Capsules") + " capsules", f"{count:,} of {dim} components"]
    routing = next((each for each in part.modules() if isinstance(each, AbstractRouting)), None)
    if routing is None:
        some = [
            output.poses[0, child] for child in range(0, count, max(1, count // 32))
        ]  # those at the border see less
        lines.append(
            f"each sees {max((_field(pose, image) for pose in some), key=lambda field: (len(field), field))}"
        )
    else:
        iterations = routing.options.get("iterations")
        lines.append(f"{_words(routing, 'Routing')} routing")
        lines += [f"{iterations} iterations"] if iterations else []
    return Layer("caps", max(6.0, math.sqrt(count)), [*lines, _weights(part)])


def _words(part: nn.Module, ending: str) -> str:
    """Return the name of a class without its ending, as words: ``Self Attention``."""
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", type(part).__name__.removesuffix(ending))


def _field(output: Tensor, image: Tensor) -> str:
    """Return the pixels that change an output, from its gradient: ``9x9 pixels``."""
    (gradient,) = torch.autograd.grad(output.sum(), image, retain_graph=True)
    rows, columns = (gradient[0].abs().amax((0, axis)).nonzero() for axis in (2, 1))
    return "x".join(str(int(each.max() - each.min()) + 1) for each in (rows, columns)) + " pixels"


def _weights(part: nn.Module) -> str:
    return f"{sum(each.numel() for each in part.parameters()):,} weights"


def drawing(layers: list[Layer], title: str) -> str:
    """Return an SVG of layers from left to right."""
    step, middle = 184, 62
    shapes = []
    for number, layer in enumerate(layers):
        x, side = 92 + number * step, 12 + 1.6 * min(layer.side, 48)
        if number:
            shapes.append(f'<path d="M{x - step + 48} {middle}H{x - 48}"/>')
        shapes += [
            f'<rect class="{layer.box}" x="{x - side / 2 + shift:.1f}" y="{middle - side / 2 - shift:.1f}" '
            f'width="{side:.1f}" height="{side:.1f}"/>'
            for shift in (6, 3, 0)
        ]
        for line, text in enumerate(layer.lines):
            style = ("b", "", "s", "s", "s")[line]
            shapes.append(
                f'<text class="{style}" x="{x}" y="{132 + 17 * line}" text-anchor="middle">{text}</text>'
            )
    return svg(
        len(layers) * step, 122 + 17 * max(len(layer.lines) for layer in layers), title, shapes
    )


def svg(
    width: float, height: float, title: str, shapes: list[str], *, is_fixed: bool = False
) -> str:
    """Return an SVG, as wide as its page, or of a fixed size, so that its text is as large as that of the page."""
    size = f' width="{width:.0f}" height="{height:.0f}"' if is_fixed else ""
    box = f'viewBox="0 0 {width:.0f} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box}{size} role="img">'
    paper = f'<rect class="paper" width="{width:.0f}" height="{height:.0f}"/>'
    return "\n".join(
        [head, f"<title>{title}</title>", f"<style>{_STYLE}</style>", paper, *shapes, "</svg>", ""]
    )


PARTS = {"rectangle": "-26,-16 26,-16 26,16 -26,16", "triangle": "-26,16 26,16 0,-16"}
WHOLES = {  # pose of each part in the whole, as rotation in degrees, right and down
    "house": {"rectangle": (0, 0, 16), "triangle": (0, 0, -16)},
    "boat": {"rectangle": (0, 0, 22), "triangle": (135, 14, -20)},
}
SEEN = (20, 90, 100)  # pose of a house in the picture


def votes() -> str:
    """Return an SVG of the votes of two parts for two wholes: they agree for the whole that is in the picture."""
    shapes, house = [], _matrix(*SEEN)
    poses = {part: house @ _matrix(*pose) for part, pose in WHOLES["house"].items()}
    for part, pose in poses.items():
        shapes.append(
            f'<polygon class="map" points="{PARTS[part]}" transform="{_transform(pose)}"/>'
        )
        shapes.append(
            f'<g transform="{_transform(pose)}"><path d="M0 0H18M0 0V18" style="stroke:#08519c"/></g>'
        )
    shapes.append(
        '<text class="b" x="90" y="190" text-anchor="middle">two parts and their poses</text>'
    )
    for number, (whole, known) in enumerate(WHOLES.items(), start=1):
        shift = _matrix(0, 260 * number, 0)
        cast = {part: poses[part] @ torch.linalg.inv(_matrix(*known[part])) for part in PARTS}
        for part, vote in cast.items():
            around = [vote @ _matrix(*pose) for pose in known.values()]
            shapes += [
                f'<polygon points="{PARTS[of]}" transform="{_transform(shift @ pose)}" '
                f'style="fill:none;stroke:{"#3182bd" if part == "rectangle" else "#e6550d"};stroke-width:1.5"/>'
                for of, pose in zip(known, around, strict=True)
            ]
        apart = float((cast["rectangle"] - cast["triangle"])[:2, 2].norm())
        x = 90 + 260 * number
        shapes.append(
            f'<text class="b" x="{x}" y="190" text-anchor="middle">votes for a {whole}</text>'
        )
        shapes.append(
            f'<text class="s" x="{x}" y="207" text-anchor="middle">{apart:.0f} pixels apart</text>'
        )
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
    return "matrix(" + " ".join(f"{value:.4f}" for value in pose[:2].T.flatten().tolist()) + ")"


def drawings() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of every file."""
    yield "votes.svg", votes()
    for name, (model, spec) in NETWORKS.items():
        torch.manual_seed(0)
        pairs = ["data=mnist_pairs"] if spec.change else []
        network = build.build_module(compose("train", [f"model={model}", *pairs]), spec).network
        yield f"{name}.svg", drawing(layers_of(network, spec), f"The network of model={model}")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in drawings():
        (FOLDER / name).write_text(text)
