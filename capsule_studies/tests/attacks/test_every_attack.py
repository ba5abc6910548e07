"""The contract of every option of ``attack=``: each needs a row of ``ROWS``."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from hydra.utils import get_object
from torch import Tensor, nn

from capsule_lab.commands import compose
from capsule_lab.config.folders import options_of
from capsule_lab.config.options import function_options
from capsule_studies.attacks.corruptions import KINDS
from capsule_studies.attacks.evaluation import NetworkObjective
from capsule_studies.attacks.gradient import GREY_LEVELS, UNIT, Box

KEYS = torch.arange(100, 106)
LABELS = torch.arange(6) % 3
NOISE = {"gaussian_noise", "shot_noise", "impulse_noise"}
DRAWN = NOISE | {"motion_blur", "fog", "spatter", "elastic"}


class Row(NamedTuple):
    """An attack with options for a test; is it ``bounded`` by its strength, and is it ``drawn`` at random?"""

    options: Mapping[str, Any] = MappingProxyType({})
    strength: float = 0.1
    bounded: bool = True
    drawn: bool = False
    length: bool = False


ROWS = {
    "fgsm": Row(),
    "bim": Row({"steps": 5}),
    "bim in many steps": Row({"steps": 30, "step_size": 0.05}),
    "bim in l2": Row({"steps": 5, "norm": "l2"}, length=True),
    "pgd": Row({"steps": 5, "restarts": 2}, drawn=True),
    "pgd in l2": Row({"steps": 5, "restarts": 1, "norm": "l2"}, drawn=True, length=True),
    "square": Row({"queries": 20}, drawn=True),
    "noise": Row(drawn=True),
    "noise in l2": Row({"norm": "l2"}, drawn=True, length=True),
    "rotation": Row({}, 20.0, bounded=False),
    "scaling": Row({}, 0.3, bounded=False),
    "shear": Row({}, 0.4, bounded=False),
    "translation": Row({}, 2.5, bounded=False),
    "translation down": Row({"direction": "down"}, -1.5, bounded=False),
}
for kind in KINDS:
    is_drawn = kind in DRAWN
    ROWS[f"corruption {kind}"] = Row({"kind": kind}, 3.0, bounded=False, drawn=is_drawn)
each_attack = pytest.mark.parametrize("name", ROWS)


def bound(name: str) -> Callable[..., Tensor]:
    target = function_options("attack")[name.split(" ")[0]].target
    return partial(get_object(target), **ROWS[name].options)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(4 * 100, 3),
    ]
    return nn.Sequential(*layers).eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    """No pixel is 0, so that pixels from outside can be recognised."""
    generator = torch.Generator().manual_seed(1)
    uniform = torch.rand(6, 1, 12, 12, generator=generator)
    return 0.05 + 0.9 * uniform


def objective(network: nn.Module, labels: Tensor = LABELS) -> NetworkObjective:
    def logits(images: Tensor) -> Tensor:
        brightest = images.amax().clamp(min=1)
        return network(images / brightest)

    return NetworkObjective("cross_entropy", labels, None, logits)


def test_every_option_has_a_row() -> None:
    assert {name.split(" ")[0] for name in ROWS} == {*options_of("attack")}


@each_attack
def test_an_image_is_attacked_as_alone_and_nothing_else_changes(
    name: str, network: nn.Module, images: Tensor
) -> None:
    given = images.clone()
    state = torch.get_rng_state()
    weights = copy.deepcopy(network.state_dict())
    attack, strength = bound(name), ROWS[name].strength
    of_all = objective(network)
    with torch.no_grad():
        together = attack(of_all, images, strength, KEYS, UNIT)
    again = attack(of_all, images, strength, KEYS, UNIT)
    assert torch.equal(again, together)
    of_one = objective(network, LABELS[4:5])
    (alone,) = attack(of_one, images[4:5], strength, KEYS[4:5], UNIT)
    torch.testing.assert_close(alone, together[4], rtol=0, atol=1e-6)
    others = attack(of_all, images, strength, KEYS + 1, UNIT)
    depends_on_key = not torch.allclose(others, together, atol=1e-6)
    assert depends_on_key == ROWS[name].drawn
    assert torch.equal(images, given)
    assert torch.equal(torch.get_rng_state(), state)
    assert not together.requires_grad
    for parameter in network.parameters():
        assert parameter.grad is None
    for key, value in network.state_dict().items():
        assert torch.equal(value, weights[key])


@each_attack
def test_within_its_strength_and_the_box(name: str, network: nn.Module, images: Tensor) -> None:
    row, attack = ROWS[name], bound(name)
    maximised = objective(network)
    odd = 7 * images - 1 / 3  # a public attack clamps standardised images to [-1, 1] at last
    not_attacked = attack(maximised, odd, 0.0, KEYS, Box(-1.0, 1.0))
    assert torch.equal(not_attacked, odd)
    boxes = [UNIT, Box(0.3, 0.6), Box()] if row.bounded else [UNIT]
    for box in boxes:  # an image outside of the box gets no further from it
        attacked = attack(maximised, images, row.strength, KEYS, box)
        assert attacked.isfinite().all()
        change = (attacked - images).flatten(1)
        if row.bounded:
            assert (attacked >= images.clamp(max=box.low)).all()
            assert (attacked <= images.clamp(min=box.high)).all()
            size = change.norm(dim=1) if row.length else change.abs().amax(1)
            assert (size > 0.05).all()
            assert (size <= row.strength + 1e-6).all()
        else:
            assert (attacked >= box.low).all()
            assert (attacked <= box.high).all()
            assert change.abs().mean() > 0.002


UNBOUNDED = [name for name, row in ROWS.items() if not row.bounded]


@pytest.mark.parametrize("name", UNBOUNDED)
def test_shifts_scale_with_the_box(name: str, images: Tensor) -> None:
    shift, strength = bound(name), ROWS[name].strength
    unit = shift(None, images, strength, KEYS, UNIT)
    for box, scale, start in ((GREY_LEVELS, 255, 0), (Box(-1.0, 1.0), 2, -1)):
        scaled = shift(None, scale * images + start, strength, KEYS, box)
        found = (scaled - start) / scale
        differs = (found - unit).abs() > 1e-4
        share = differs.float().mean()
        # a count of photons or a rounded grey level may fall to the other side
        assert share < 0.005
    message = r"^(fill is 'black', but )?pixels have no (lower )?bounds?, .* space=grey_levels$"
    with pytest.raises(ValueError, match=message):
        shift(None, images, strength, KEYS, Box())


def test_options_of_users_are_the_keyword_arguments() -> None:
    config = compose("attack", ["ckpt=a", "attack=pgd", "attack.steps=3"])
    assert config.attack == {
        "_target_": "capsule_studies.attacks.gradient.pgd",
        "_partial_": True,
        "steps": 3,
        "step_size": None,
        "restarts": 5,
        "norm": "linf",
    }


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bim", {"steps": 0}, "steps is 0; expected 1 or more"),
        ("pgd", {"step_size": -1.0}, "step_size is -1.0; expected 0 or more"),
        ("pgd", {"restarts": 0}, "restarts is 0; expected 1 or more"),
        ("square", {"queries": 0}, "queries is 0; expected 1 or more"),
        ("square", {"share": 0.0}, "share is 0.0; expected more than 0, 0 to 1"),
        ("scaling", {"epsilon": -1.0}, "epsilon is -1.0; expected more than -1"),
        ("corruption fog", {"kind": "frost"}, "kind is 'frost'; expected 'gaussian_noise', .*"),
        ("corruption fog", {"epsilon": 2.5}, "epsilon, a severity, is 2.5; expected 0, 1, .* or 5"),
    ],
)
def test_wrong_options(
    name: str, options: dict[str, Any], message: str, network: nn.Module, images: Tensor
) -> None:
    given = {"epsilon": ROWS[name].strength, **options}
    with pytest.raises(ValueError, match=f"^{message}$"):
        bound(name)(objective(network), images, key=KEYS, **given)
