"""Errors compared at equal validation error: lines through known curves, levels without a result, a whole run."""

from pathlib import Path

import numpy as np
import pytest

from capsule_lab.callbacks import AtEqualError
from capsule_lab.callbacks.at_equal_error import at_level
from capsule_lab.commands import compose
from capsule_lab.commands.train import train
from tests.helpers.commands import NO_PICTURES, TINY_CNN
from tests.helpers.training import curves


def test_value_of_the_line_at_the_level() -> None:
    near = [(x, 5 + 2 * x) for x in (30.0, 22.0, 18.0, 15.0)]
    outside_of_the_window = [(40.0, 1000.0), (9.0, 1000.0)]  # 13.3 to 30
    for points in (near, [*near, *outside_of_the_window]):
        assert at_level(points, 20) == pytest.approx(45)


def test_an_error_equal_to_the_level_counts_as_on_both_sides() -> None:
    """3,000 digits can have exactly 4 % errors, which a float32 stores as 4.0000019; 6 % is the end of the range."""
    errors = [(6.0000005, 30.0), (5.0, 25.0), (float(np.float32(4.0000019)), 20.0)]
    assert at_level(errors, 4) == pytest.approx(20, rel=1e-4)
    assert at_level([(6.0, 30.0), (5.0, 25.0), (4.001, 20.0)], 4) is None


def test_least_squares_of_noisy_validations() -> None:
    """Judged by the closed form of simple regression, in float64."""
    generator = np.random.default_rng(0)
    x = generator.uniform(14, 29, 12)
    y = 30 + x + generator.normal(size=12)
    deviation = x - x.mean()
    slope = deviation @ (y - y.mean()) / (deviation @ deviation)
    expected = y.mean() + slope * (20 - x.mean())
    points = [*zip(x, y, strict=True)]
    assert at_level(points, 20) == pytest.approx(expected, rel=1e-12)


WITHOUT_RESULT = {
    "no validation": [],
    "two validations": [(21.0, 1.0), (19.0, 1.0)],
    "not reached": [(29.0, 1.0), (25.0, 1.0), (21.0, 1.0)],
    "skipped, although three validations are in the range": [
        (40.0, 1.0),
        (19.0, 1.0),
        (18.0, 1.0),
        (15.0, 1.0),
    ],
    "reached before the first validation": [(19.0, 1.0), (18.0, 1.0), (17.0, 1.0)],
    "no line": [(20.0, 1.0), (20.0, 2.0), (20.0, 3.0)],
}


@pytest.mark.parametrize("name", WITHOUT_RESULT)
def test_levels_without_a_result(name: str) -> None:
    assert at_level(WITHOUT_RESULT[name], 20) is None


def test_levels_are_checked() -> None:
    with pytest.raises(ValueError, match="levels is empty; expected percentages"):
        AtEqualError([])
    with pytest.raises(ValueError, match="levels is 0"):
        AtEqualError([10, 0])
    for other in ([], ["val/error", "val/error"]):
        with pytest.raises(ValueError, match=r"other is .*; expected one or several different"):
            AtEqualError([10], other=other)


OVERRIDES = [
    *TINY_CNN,
    *NO_PICTURES,
    "data=affnist",
    "data.source=standin",
    "data.validation=stratified",
    "data.affine_validation=true",
    "data.eval_images=60",
    "trainer.max_epochs=-1",
    "trainer.max_steps=8",
    "trainer.check_val_every_n_epoch=null",
    "trainer.val_check_interval=1",
    "+callbacks.at_equal_error={_target_: capsule_lab.callbacks.AtEqualError, levels: [80, 1], other: affine/error}",
]


def test_a_run_records_the_errors_of_its_validations(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    result = train(compose("train", OVERRIDES), directory)
    errors = []
    for row in curves(directory):
        first = row.get("val/error")
        other = row.get("affine/error")
        if first and other:
            errors.append((float(first), float(other)))
    assert len(errors) == 8
    found = result["at_equal_error"]
    assert found.keys() == {"80", "1", "end"}
    _, last = errors[-1]
    assert found["end"] == pytest.approx(last, rel=1e-4)
    assert found["1"] is None
    expected = at_level(errors, 80)
    if expected is None:
        assert found["80"] is None
    else:
        assert found["80"] == pytest.approx(expected, rel=1e-4)


def test_several_errors_are_compared_at_the_same_levels(tmp_path: Path) -> None:
    replaced = {"other: affine/error": "other: [affine/error, affine_within/error]"}
    overrides = [*OVERRIDES, "data.affine_within=true"]
    for old, new in replaced.items():
        overrides = [each.replace(old, new) for each in overrides]
    directory = tmp_path / "run"
    found = train(compose("train", overrides), directory)["at_equal_error"]
    names = ("affine", "affine_within")
    assert found.keys() == {f"{name}/{level}" for name in names for level in ("80", "1", "end")}
    *_, last = (row for row in curves(directory) if row.get("affine/error"))
    for name in names:
        assert found[f"{name}/end"] == pytest.approx(float(last[f"{name}/error"]), rel=1e-4)
    assert found["affine/end"] != found["affine_within/end"]


def test_an_error_that_is_not_logged(tmp_path: Path) -> None:
    overrides = [each.replace("affine/error", "affin/error") for each in OVERRIDES]
    config = compose("train", overrides)
    message = r"does not log affin/error.*expected some of affine/error, val/error"
    with pytest.raises(ValueError, match=message):
        train(config, tmp_path / "run")
