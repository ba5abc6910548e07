"""Every option of matrix capsules trains with finite numbers."""

import math
from pathlib import Path
from typing import Any

import pytest

from capsule_lab.commands import compose
from capsule_lab.commands.train import train
from tests.helpers.commands import NO_PICTURES
from tests.helpers.training import weights

EM_CAPS = [
    "model=em_caps_paper",
    "model.channels=8",
    "model.primary.types=4",
    "model.conv.types=[4,4]",
]
ON_TOYS = [
    "data=smallnorb",
    "data.source=standin",
    "data.batch_size=16",
    "trainer.accelerator=cpu",
    *NO_PICTURES,
]
EPOCH = ["trainer.max_epochs=1", "train.test=last"]

OPTIONS = {
    **{f"{n} iterations": [f"routing.iterations={n}"] for n in (1, 2, 3, 5)},
    **{f"loss {name}": [f"loss={name}"] for name in ("spread", "spread_official", "margin", "cross_entropy")},
    "loss on logits": ["loss=cross_entropy_logits"],
    **{
        name: [f"routing={name}"]
        for name in (
            "em", "em_paper", "em_official_fast", "em_official_legacy", "em_tutorial", "dynamic", "uniform",
            "self_attention", "variational_bayes",
            "random_couplings", "scaled_distance", "attention_over_children",
        )
    },
    "inverted attention": ["routing=inverted_attention", "loss=cross_entropy_logits"],
    "legacy as official": ["routing=em_official_legacy", "model.conv.weight_std=0.3"],
    "mixing proportions": ["routing.activation=mixing_proportions", "class_routing.cost=paper"],
    "vectors": ["model.pose=vector"],
    "3x3 poses": ["model.primary.dim=9"],
    "no coordinates": ["model.classes.coordinates=none"],
    "grid": ["model.classes.coordinates=grid", "model.classes.entries=paper"],
    "windows alone": ["routing.normalisation=window"],
    "shared betas": ["routing.shared_betas=true"],
    "same padding, batch norm, bias": ["model.stem=padded", "model.batch_norm=true", "model.primary.bias=true"],
    "reference backend": ["routing.backend=reference"],
    "linear margin": ["schedule=em_linear_margin"],
    "bfloat16": ["trainer.precision=bf16-mixed"],
    "eyes apart": ["data.stereo=separate", "data.preprocessing=paper"],
}  # fmt: skip
QUICK = ["3 iterations", "em_official_legacy"]


def on_toys(toynorb: Path, *overrides: str, model: list[str] = EM_CAPS) -> Any:
    return compose("train", [*model, *ON_TOYS, f"data.directory={toynorb}", *EPOCH, *overrides])


def is_finite(result: dict[str, Any], directory: Path) -> bool:
    values = [*result["val"].values(), *result["test"].values()]
    return all(map(math.isfinite, values)) and all(
        value.isfinite().all() for value in weights(directory).values()
    )


@pytest.mark.parametrize(
    "option",
    [
        pytest.param(name, marks=pytest.mark.whole if name in QUICK else pytest.mark.slow)
        for name in OPTIONS
    ],
)
def test_option_trains_for_an_epoch_with_finite_numbers(
    toynorb: Path, tmp_path: Path, option: str
) -> None:
    result = train(on_toys(toynorb, *OPTIONS[option]), tmp_path / "run")
    assert result["steps"] == (10 if option == "eyes apart" else 5)
    assert {"error", "loss", "l2"} < result["test"].keys()
    assert is_finite(result, tmp_path / "run")
