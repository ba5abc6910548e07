"""The caches of ``tests.helpers.compositions`` do not change what Hydra composes."""

import pytest
from omegaconf import OmegaConf

from capsule_lab.commands import compose
from tests.helpers.compositions import composed_anew, composed_from_parts

VALUES = [
    "seed=3",
    "++trainer.gradient_clip_algorithm=value",
    "callbacks.last=null",
    "~trainer.log_every_n_steps",
]


@pytest.mark.whole
@pytest.mark.parametrize(
    "overrides",
    [
        ["experiment=hinton2018/smallnorb", "routing=em", "debug=smoke"],
        ["experiment=sabour2017/multimnist", "loss=margin", "callbacks=[default,averaged_weights]"],
    ],
    ids=" ".join,
)
def test_cached_composition_equals_that_of_hydra(overrides: list[str]) -> None:
    """With and without overrides of values, which do not change the cached parts."""
    with composed_anew():
        expected = [compose("train", given) for given in (overrides, [*overrides, *VALUES])]
    with composed_from_parts():
        for _ in range(2):
            cached = [compose("train", given) for given in (overrides, [*overrides, *VALUES])]
            assert cached == expected
            assert list(map(OmegaConf.to_yaml, cached)) == list(map(OmegaConf.to_yaml, expected))
