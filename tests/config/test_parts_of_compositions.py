"""What is composed from parts is what Hydra composes."""

import pytest
from omegaconf import OmegaConf

from capsule_lab.config.compose import compose
from tests.helpers.compositions import composed_anew, composed_from_parts

VALUES = ["seed=3", "++trainer.gradient_clip_algorithm=value", "callbacks.last=null", "~trainer.log_every_n_steps"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=hinton2018/smallnorb", "routing=em", "debug=smoke"],
        ["experiment=sabour2017/multimnist", "loss=margin", "callbacks=[default,averaged_weights]"],
    ],
    ids=" ".join,
)
def test_parts_give_what_hydra_composes(overrides: list[str]) -> None:
    """Without and with overrides of values; parts that were kept are not changed by them."""
    with composed_anew():
        expected = [compose("train", given) for given in (overrides, [*overrides, *VALUES])]
    with composed_from_parts():
        for _ in range(2):
            found = [compose("train", given) for given in (overrides, [*overrides, *VALUES])]
            assert found == expected
            assert [OmegaConf.to_yaml(each) for each in found] == [OmegaConf.to_yaml(each) for each in expected]
