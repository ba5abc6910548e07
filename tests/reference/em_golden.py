"""Golden numbers of EM routing: inputs as formulas, and the results of the official graphs.

They were computed in float64 and confirmed against the official TensorFlow graphs in float32. Printed to 8 decimals:
compare with ``TOLERANCE``. Arrays are filled in C order, n is the flat index.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.helpers.closeness import assert_close
from tests.helpers.waves import cosine, sine

TOLERANCE = 5.1e-9  # half a unit of the eighth decimal plus rounding


def in_paper_terms(cost: str, b_s: float, b_a: float, final: float) -> tuple[float, float, float]:
    """``(beta_u, beta_a, final inverse temperature)`` with which the paper's cost equals an official one.

    The official code sums ln variance where the paper sums ln sigma, hence twice the inverse temperature.
    """
    constant = math.log(2 * math.pi) + 1
    if cost == "official_legacy":
        return b_s * constant / 2, -2500 * b_a, 2 * final
    return (math.log(b_s**2 + 5e-4) + constant) / 2, -400 * b_a, 2 * final


def in_paper_form(row: "ConvGolden") -> "ConvGolden":
    beta_u, beta_a, final = in_paper_terms(row.cost, row.b_s, row.b_a, row.final)
    return row._replace(
        name=f"{row.name}, paper", cost="paper", b_s=beta_u, b_a=beta_a, final=final
    )


def check(row: "ConvGolden | ClassGolden", **found: Tensor) -> None:
    for quantity, values in found.items():
        expected = getattr(row, quantity)
        if expected != ():
            assert_close(values, torch.tensor(expected, dtype=torch.float64), atol=TOLERANCE)


def conv_poses() -> Tensor:
    """``(b 1, B 2, atom 16, h 7, w 7)``, atom = 4 row + column."""
    return sine(1, 2, 16, 7, 7, frequency=0.37, phase=0.1)


def conv_activations() -> Tensor:
    """``(b 1, B 2, h 7, w 7)``"""
    return 0.5 + sine(1, 2, 7, 7, scale=0.4, frequency=0.91)


def conv_weight() -> Tensor:
    """``(B 2, kh 3, kw 3, x 4, c 4, C 3)``; vote[r, c] = sum over x of pose[r, x] weight[x, c]."""
    return cosine(2, 3, 3, 4, 4, 3, scale=0.3, frequency=0.53, phase=0.2)


class ConvGolden(NamedTuple):
    """One row of the table. ``b_s``, ``b_a`` and ``final`` are in the official code's terms, the same for all types."""

    name: str
    stride: int
    cost: str
    normalisation: str
    b_s: float
    b_a: float
    final: float
    first_activations: tuple[float, ...]  # act[0, :, 0, 0]
    last_activations: tuple[float, ...]  # act[0, :, -1, -1]
    mean_activation: float
    first_pose: tuple[float, ...]  # pose[0, 0, 0:4, 0, 0]
    pose_std: float  # of all poses, divided by n
    total_couplings: float  # sum of the couplings after the second iteration's E-step
    masses: tuple[float, ...]  # of parent (0, 0, 0), in each iteration
    logits: tuple[float, ...] = ()  # of parent (0, 0, 0), in each iteration

    def check(
        self, activations: Tensor, poses: Tensor, couplings: Tensor, masses: Tensor, logits: Tensor
    ) -> None:
        """Compare poses and activations of the grid, the last couplings, and masses and logits of parent 0."""
        check(
            self,
            first_activations=activations[0, :, 0, 0],
            last_activations=activations[0, :, -1, -1],
            mean_activation=activations.mean(),
            first_pose=poses[0, 0, :4, 0, 0],
            pose_std=poses.std(correction=0),
            total_couplings=couplings.sum(),
            masses=masses,
            logits=logits,
        )


_LEGACY: dict[str, Any] = {"cost": "official_legacy", "b_s": 0.5, "b_a": 0.02, "final": 0.01}
_FAST: dict[str, Any] = {"cost": "official_fast", "b_s": 0.5, "b_a": 0.2, "final": 0.04}

CONV = [
    ConvGolden(
        name="legacy-stride2", stride=2, normalisation="official_legacy", **_LEGACY,
        first_activations=(0.5031271, 0.49335991, 0.50305326),
        last_activations=(0.48028105, 0.48330217, 0.48463406),
        mean_activation=0.48866274, pose_std=0.20266012, total_couplings=129.76902009,
        first_pose=(-0.23322401, -0.03507155, 0.23457093, 0.02606286),
        masses=(4.63458645, 7.18350899, 5.02606144), logits=(-0.0291359, 0.0145431, 0.01250856),
    ),
    ConvGolden(
        name="legacy-stride1", stride=1, normalisation="official_legacy", **_LEGACY,
        first_activations=(0.52102483, 0.50893585, 0.51055501),
        last_activations=(0.48470267, 0.48218873, 0.48249929),
        mean_activation=0.4853178, pose_std=0.34286249, total_couplings=255.71074468,
        first_pose=(-0.21985306, -0.23517774, 0.22888506, 0.22638742),
        masses=(4.63458645, 5.54584128, 5.85813018),
    ),
    ConvGolden(
        name="legacy-cost-stride2", stride=2, normalisation="all_parents", **_LEGACY,
        first_activations=(0.4853318, 0.48845276, 0.49151126),
        last_activations=(0.47229795, 0.47123134, 0.47878275),
        mean_activation=0.48119312, pose_std=0.30399046, total_couplings=98.0,
        first_pose=(-0.21053397, -0.1492227, 0.21626487, 0.14091705),
        masses=(4.63458645, 3.48855881, 2.46322162),
    ),
    ConvGolden(
        name="legacy-cost-stride1", stride=1, normalisation="all_parents", **_LEGACY,
        first_activations=(0.48539777, 0.47993879, 0.48442345),
        last_activations=(0.46780809, 0.47140922, 0.4787024),
        mean_activation=0.474495, pose_std=0.3629997, total_couplings=98.0,
        first_pose=(-0.19235055, -0.10115304, 0.19623533, 0.09361663),
        masses=(4.63458645, 2.14586963, 1.82060814),
    ),
    ConvGolden(
        name="fast-stride2", stride=2, normalisation="official_fast", **_FAST,
        first_activations=(0.36317489, 0.36390164, 0.38102203),
        last_activations=(0.31104383, 0.29793861, 0.33282779),
        mean_activation=0.34557429, pose_std=0.29902847, total_couplings=88.16310683,
        first_pose=(-0.20751516, -0.15754698, 0.21356575, 0.14934499),
        masses=(4.63458645, 3.38987284, 2.65772153), logits=(-0.24168126, -0.41982614, -0.56161057),
    ),
    ConvGolden(
        name="fast-stride1", stride=1, normalisation="official_fast", **_FAST,
        first_activations=(0.3634036, 0.33866174, 0.3550443),
        last_activations=(0.30235508, 0.29527751, 0.33186851),
        mean_activation=0.32031172, pose_std=0.36208331, total_couplings=91.42196753,
        first_pose=(-0.1928481, -0.0962879, 0.19654603, 0.08873955),
        masses=(4.63458645, 2.1081379, 1.92748759),
    ),
]  # fmt: skip


def class_poses() -> Tensor:
    """``(b 1, B 3, atom 16, h 2, w 2)``"""
    return sine(1, 3, 16, 2, 2, frequency=0.29, phase=0.3)


def class_activations() -> Tensor:
    """``(b 1, B 3, h 2, w 2)``"""
    return 0.5 + cosine(1, 3, 2, 2, scale=0.4, frequency=0.77, phase=0.2)


def class_weight() -> Tensor:
    """``(B 3, x 4, c 4, class 4)``, shared by all positions."""
    return sine(3, 4, 4, 4, scale=0.3, frequency=0.61, phase=0.4)


def class_offsets() -> Tensor:
    """Offsets of the votes ``(atom 16, h 2, w 2)``: entry 0 from the column, entry 1 from the row."""
    offsets = torch.zeros(16, 2, 2, dtype=torch.float64)
    offsets[0] = -0.04 + 0.04 * torch.arange(2.0).double()
    offsets[1] = offsets[0].T
    return offsets


class ClassGolden(NamedTuple):
    """One of the two class tests; the children are ordered type, row, column."""

    name: str
    b_s: float
    b_a: float
    activations: tuple[float, ...]
    first_pose: tuple[float, ...] = ()  # pose[0, 0, 0:4]
    logits: tuple[float, ...] = ()  # of the last iteration
    cost: str = "official_legacy"
    final: float = 0.0025

    def check(self, activations: Tensor, poses: Tensor, logits: Tensor) -> None:
        check(self, activations=activations[0], first_pose=poses[0, 0, :4], logits=logits[0])


CLASS = [
    ClassGolden(
        name="small-betas", b_s=0.5, b_a=0.02,
        activations=(0.50138757, 0.49954529, 0.49636317, 0.49855425),
        first_pose=(-0.0910182, 0.03064774, -0.02051042, -0.02713675),
    ),
    ClassGolden(
        name="official-betas", b_s=2.0, b_a=1.0,
        activations=(0.14285563, 0.1432776, 0.1430865, 0.14331921),
        logits=(-1.79177186, -1.78832993, -1.78988761, -1.78799099),
    ),
]  # fmt: skip


# (kernel, stride) of conv1, primary, ConvCaps1, ConvCaps2; no padding
LAYERS = ((5, 2), (1, 1), (3, 2), (3, 1))

COORDINATES = {  # pixels along an axis -> coordinates of the positions in the class layer
    24: (-0.04, 0.0),
    28: (-0.06, -0.02, 0.02),
    32: (-0.08, -0.04, 0.0, 0.04),
    40: (-0.12, -0.08, -0.04, 0.0, 0.04, 0.08),
}
