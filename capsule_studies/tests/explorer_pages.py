"""Runs and pictures for pages of the explorer, without training."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from capsule_lab.data.standins.digits import standin_digits
from capsule_lab.types import DataSpec
from capsule_studies.explorer.pictures import Pictures
from capsule_studies.tests.explorer_networks import COLOUR, SHAPE, with_statistics
from tests.helpers.networks import pictures as random_images

NAMES = ("</script><b>", 'two "quotes"', *"23456789")
IN_COLOUR = DataSpec(COLOUR, 3, classes=("cross", "disc", "square"))
FORMS = {
    SHAPE: {"kind": "digit"},
    COLOUR: {"kind": "photograph", "size": list(COLOUR[1:]), "fit": "crop", "background": "white"},
}


def run_of(network: Any, spec: DataSpec | None = None) -> Any:
    spec = spec or DataSpec(network.image_shape, 10, classes=NAMES)
    data = SimpleNamespace(
        spec=spec,
        input_form=FORMS.get(spec.image_shape),
        transform=lambda stored, key, augment: stored.float() / 255,
    )
    return SimpleNamespace(
        network=with_statistics(network),
        spec=spec,
        checkpoint=Path("a.ckpt"),
        directory=Path("none"),
        provenance={"name": "stand-in"},
        check_classifies=lambda name: None,
        build_data=lambda: data,
    )


def loaded(run: Any, source: str) -> Pictures:
    if run.spec.image_shape == COLOUR:
        labels = torch.arange(60) % 3
        return Pictures(random_images(60, COLOUR), labels, "painted pictures")
    stored = standin_digits(train=True)
    images = stored.images[:300].float() / 255
    return Pictures(images, stored.labels[:300], "painted digits")
