"""Every option of matrix capsules trains without a number that is not finite; the viewpoint protocol end to end."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from capsule_lab.config.compose import compose
from capsule_lab.data import SmallNORBDataModule
from capsule_lab.data.loader import Images
from capsule_lab.train import train
from tests.helpers.commands import NO_PICTURES, Ended
from tests.helpers.training import weights

Cli = Callable[..., Ended]

EM_CAPS = ["model=em_caps_paper", "model.channels=8", "model.primary.types=4", "model.conv.types=[4,4]"]
CNN = ["model=cnn_smallnorb", "model.channels=[4,4]", "model.hidden=[8]"]
ON_TOYS = ["data=smallnorb", "data.source=standin", "data.batch_size=16", "trainer.accelerator=cpu", *NO_PICTURES]
EPOCH = ["trainer.max_epochs=1", "train.test=last"]

OPTIONS = {
    **{f"{n} iterations": [f"routing.iterations={n}"] for n in (1, 2, 3, 5)},
    **{f"loss {name}": [f"loss={name}"] for name in ("spread", "spread_official", "margin", "cross_entropy")},
    "loss on logits": ["loss=cross_entropy_logits"],
    **{
        name: [f"routing={name}"]
        for name in (
            "em", "em_paper", "em_official_fast", "em_official_legacy", "em_tutorial", "dynamic", "uniform",
            "self_attention", "variational_bayes", "variational_bayes_official",
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
    return all(map(math.isfinite, values)) and all(value.isfinite().all() for value in weights(directory).values())


@pytest.mark.parametrize(
    "option", [pytest.param(name, marks=pytest.mark.whole if name in QUICK else pytest.mark.slow) for name in OPTIONS]
)
def test_option_trains_for_an_epoch(toynorb: Path, tmp_path: Path, option: str) -> None:
    """The guard among the callbacks checks the loss of every step."""
    result = train(on_toys(toynorb, *OPTIONS[option]), tmp_path / "run")
    assert result["steps"] == (10 if option == "eyes apart" else 5)
    assert {"error", "loss", "l2"} < result["test"].keys()
    assert is_finite(result, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("size", [[], ["model=em_caps_small"], ["model=em_caps_paper"]], ids=["tiny", "small", "full"])
def test_every_weight_moves(toynorb: Path, tmp_path: Path, size: list[str]) -> None:
    """From the initial weights, which a run with a learning rate of almost 0 keeps."""
    model = size or EM_CAPS
    few = ["data.train_images=20", "data.batch_size=10"]
    train(on_toys(toynorb, *few, model=model), tmp_path / "run")
    train(on_toys(toynorb, *few, "schedule.learning_rate.start=0", model=model), tmp_path / "still")
    moved, still = weights(tmp_path / "run"), weights(tmp_path / "still")
    assert [name for name in moved if torch.equal(moved[name], still[name])] == []


@pytest.mark.parametrize(
    ("routing", "offset"),
    [
        pytest.param("em", 200.0, marks=pytest.mark.whole),
        pytest.param("em_paper", -200.0, marks=pytest.mark.slow),
        pytest.param("em_official_fast", 200.0, marks=pytest.mark.slow),
        pytest.param("em_official_legacy", -200.0, marks=pytest.mark.slow),
    ],
)
def test_five_iterations_where_no_or_every_capsule_is_active(
    toynorb: Path, tmp_path: Path, routing: str, offset: float
) -> None:
    extreme = [f"routing={routing}", "routing.iterations=5", f"model.primary.offset={offset}"]
    assert is_finite(train(on_toys(toynorb, *extreme), tmp_path / "run"), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("routing", "preprocessing"),
    [
        *(("em", "official"), ("em_paper", "paper"), ("em_official_fast", "official")),
        *(("em_official_legacy", "paper"), ("em_tutorial", "official")),
    ],
)
def test_five_iterations_on_black_images(
    toynorb: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, routing: str, preprocessing: str
) -> None:
    real = SmallNORBDataModule.load

    def black(self: SmallNORBDataModule, **which: bool) -> Images:
        found = real(self, **which)
        return Images(torch.zeros_like(found.images), found.labels, found.factors)

    monkeypatch.setattr(SmallNORBDataModule, "load", black)
    chosen = [f"routing={routing}", "routing.iterations=5", f"data.preprocessing={preprocessing}"]
    assert is_finite(train(on_toys(toynorb, *chosen), tmp_path / "run"), tmp_path / "run")


# --- viewpoints (Hinton 2018, section 5) -----------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize(
    ("model", "split", "threshold", "epochs"), [(EM_CAPS, "azimuth", 100.1, 1), (CNN, "elevation", 0, 3)]
)
def test_viewpoint_protocol(
    cli: Cli, toynorb: Path, tmp_path: Path, model: list[str], split: str, threshold: float, epochs: int
) -> None:
    stop = ["callbacks=stop_at_error", f"callbacks.stop_at_error.stopping_threshold={threshold}"]
    run = [f"data.directory={toynorb}", f"data.split={split}", "trainer.max_epochs=3", "train.directory=run"]
    ended = cli("train", *model, *stop, *ON_TOYS, *run, "train.test=last")
    assert (ended.status, ended.err) == (0, "")
    found = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert found["epochs"] == epochs
    assert found["weights_tested"] == "last"
    assert found["planned_steps"] == 3 * found["steps"] / epochs
    errors = {name: value for name, value in found["test"].items() if name.endswith("error")}
    assert errors.keys() == {"error", "familiar/error", "novel/error"}
    assert min(errors["familiar/error"], errors["novel/error"]) <= errors["error"]
    assert max(errors["familiar/error"], errors["novel/error"]) >= errors["error"]
    assert "familiar" in ended.out


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["viewpoint_azimuth", "viewpoint_elevation"])
def test_viewpoint_experiment_compares_networks_of_equal_error(
    cli: Cli, toynorb: Path, tmp_path: Path, experiment: str
) -> None:
    """As the head of the experiment says: the CNN's validation error is the threshold of the capsules."""
    shared = [f"experiment=hinton2018/{experiment}", *ON_TOYS, f"data.directory={toynorb}", "trainer.max_steps=6"]
    first = cli("train", *shared, *CNN, "schedule=exponential", "train.directory=cnn")
    assert (first.status, first.err) == (0, "")
    error = json.loads((tmp_path / "cnn" / "metrics.json").read_text())["val"]["error"]
    stop = ["callbacks=stop_at_error", f"callbacks.stop_at_error.stopping_threshold={error}"]
    second = cli("train", *shared, *EM_CAPS, *stop, "train.directory=capsules")
    assert (second.status, second.err) == (0, "")
    found = json.loads((tmp_path / "capsules" / "metrics.json").read_text())
    assert {"error", "familiar/error", "novel/error"} <= found["test"].keys()
    assert found["steps"] == 6 or found["val"]["error"] < error
