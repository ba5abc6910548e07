"""What is composed from parts is what Hydra composes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from omegaconf import OmegaConf

from capsule_lab.config.compose import compose
from tests.helpers.compositions import composed_anew, composed_from_parts

VALUES = ["seed=3", "++trainer.gradient_clip_algorithm=value", "callbacks.last=null", "~trainer.log_every_n_steps"]


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["experiment=quickstart", "debug=smoke"],
        ["experiment=hinton2018/smallnorb_small", "routing=em"],
        ["experiment=ribeiro2020/mnist", "model=capsnet", "logger=[csv,tensorboard]"],
        ["experiment=sabour2017/multimnist", "loss=margin", "callbacks=[default,averaged_weights]"],
    ],
    ids=" ".join,
)
def test_parts_give_what_hydra_composes(overrides: list[str]) -> None:
    """Node by node, without and with overrides of values; parts that were kept are not changed by them."""
    with composed_anew():
        expected = [compose("train", given) for given in (overrides, [*overrides, *VALUES])]
    with composed_from_parts():
        for _ in range(2):
            found = [compose("train", given) for given in (overrides, [*overrides, *VALUES])]
            for one, other in zip(found, expected, strict=True):
                assert one == other
                assert OmegaConf.to_yaml(one) == OmegaConf.to_yaml(other)
                assert [*flags(one)] == [*flags(other)]


def flags(node: object, path: str = "") -> Iterator[tuple[str, object]]:
    """What OmegaConf keeps beside the values: flags of each node, and its type."""
    metadata = vars(node)["_metadata"]
    yield path, (metadata.flags, metadata.ref_type, metadata.object_type)
    content = vars(node).get("_content")
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for name, child in items:
        yield from flags(child, f"{path}.{name}")
