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
    "1 iterations": ["routing.iterations=1"],
    "2 iterations": ["routing.iterations=2"],
    "3 iterations": ["routing.iterations=3"],
    "5 iterations": ["routing.iterations=5"],
    "loss spread": ["loss=spread"],
    "loss spread_official": ["loss=spread_official"],
    "loss margin": ["loss=margin"],
    "loss cross_entropy": ["loss=cross_entropy"],
    "loss on logits": ["loss=cross_entropy_logits"],
    "em": ["routing=em"],
    "em_paper": ["routing=em_paper"],
    "em_official_fast": ["routing=em_official_fast"],
    "em_official_legacy": ["routing=em_official_legacy"],
    "em_tutorial": ["routing=em_tutorial"],
    "dynamic": ["routing=dynamic"],
    "uniform": ["routing=uniform"],
    "self_attention": ["routing=self_attention"],
    "variational_bayes": ["routing=variational_bayes"],
    "random_couplings": ["routing=random_couplings"],
    "random_couplings_drawn": ["routing=random_couplings_drawn"],
    "scaled_distance": ["routing=scaled_distance"],
    "attention_over_children": ["routing=attention_over_children"],
    "inverted attention": ["routing=inverted_attention", "loss=cross_entropy_logits"],
    "legacy as official": ["routing=em_official_legacy", "model.conv.weight_std=0.3"],
    "mixing proportions": ["routing.activation=mixing_proportions", "class_routing.cost=paper"],
    "vectors": ["model.pose=vector"],
    "3x3 poses": ["model.primary.dim=9"],
    "no coordinates": ["model.classes.coordinates=none"],
    "grid": ["model.classes.coordinates=grid", "model.classes.entries=paper"],
    "windows alone": ["routing.normalisation=window"],
    "shared betas": ["routing.shared_betas=true"],
    "same padding, batch norm, bias": [
        "model.stem=padded",
        "model.batch_norm=true",
        "model.primary.bias=true",
    ],
    "reference backend": ["routing.backend=reference"],
    "linear margin": ["schedule=em_linear_margin"],
    "bfloat16": ["trainer.precision=bf16-mixed"],
    "eyes apart": ["data.stereo=separate", "data.preprocessing=paper"],
}
QUICK = ["3 iterations", "em_official_legacy"]


def on_toys(toynorb: Path, *overrides: str, model: list[str] = EM_CAPS) -> Any:
    return compose("train", [*model, *ON_TOYS, f"data.directory={toynorb}", *EPOCH, *overrides])


def is_finite(result: dict[str, Any], directory: Path) -> bool:
    for value in (*result["val"].values(), *result["test"].values()):
        if not math.isfinite(value):
            return False
    return all(weight.isfinite().all() for weight in weights(directory).values())


CASES = []
for name in OPTIONS:
    mark = pytest.mark.whole if name in QUICK else pytest.mark.slow
    CASES.append(pytest.param(name, marks=mark))


@pytest.mark.parametrize("option", CASES)
def test_option_trains_for_an_epoch_with_finite_numbers(
    toynorb: Path, tmp_path: Path, option: str
) -> None:
    result = train(on_toys(toynorb, *OPTIONS[option]), tmp_path / "run")
    assert result["steps"] == (10 if option == "eyes apart" else 5)
    assert {"error", "loss", "l2"} < result["test"].keys()
    assert is_finite(result, tmp_path / "run")
