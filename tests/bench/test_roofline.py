"""Operations and bytes of a case, counted by hand here."""

from __future__ import annotations

import pytest

from capsule_lab.bench import roofline
from capsule_lab.bench.cases import Case, model_groups
from capsule_lab.bench.roofline import Work
from capsule_lab.config.compose import compose
from tests.helpers.bench import small_case

RATES = {"float32_operations_per_second": 1e9, "bfloat16_operations_per_second": 4e9, "bytes_per_second": 1e8}


def test_window_layer() -> None:
    votes = 2 * 9 * 3
    forward = 16 * 4 + 2 * (16 + 16) + (16 + 16)  # the vote, mean and variance twice, the distance once
    inputs = 2 * 9 * (16 + 1) + 9 * 3 * 16 + 2 * 3  # poses and activations, transformations, betas
    outputs = 2 * 3 * (16 + 1)
    carried = votes * 3 * (2 * 2 + 2 * 1)  # couplings of two iterations, distances of one; the gradient does it twice
    expected = Work(
        routing_operations=2 * 3 * votes * forward, full_numbers=3 * inputs + 2 * outputs, carried_numbers=carried
    )
    assert roofline.count(small_case("em_window")) == expected
    assert expected.lower_bounds(RATES, "32-true") == {
        "operations": 51_840,
        "bytes": 9_744,
        "floor_arithmetic_seconds": 51_840 / 1e9,
        "floor_memory_seconds": 9_744 / 1e8,
        "floor_carried_seconds": (9_744 + 4 * 972) / 1e8,
    }


def test_percent_of_roofline() -> None:
    work = Work(routing_operations=2_000_000, full_numbers=50_000, carried_numbers=100_000)  # 2 ms, 2 ms, 6 ms
    row = {"precision": "32-true", "form": "matmul", "seconds_median": 0.01}
    found = roofline.beside_roofline(row, work, RATES)
    assert found["roofline_percent"] == pytest.approx(20)
    assert found["operations_per_second"] == pytest.approx(2e8)
    assert found["bytes_per_second"] == pytest.approx(2e7)
    assert "fused_roofline_percent" not in found
    found = roofline.beside_roofline({**row, "form": "fused"}, work, RATES)
    assert (found["roofline_percent"], found["fused_roofline_percent"]) == (pytest.approx(20), pytest.approx(60))


def test_rate_of_tf32_where_convolutions_have_it() -> None:
    work = Work(operations=8_000_000, routing_operations=1_000_000)
    bounds = work.lower_bounds({**RATES, "tf32_operations_per_second": 8e9}, "32-true")
    assert bounds["floor_arithmetic_seconds"] == pytest.approx(2e-3)


def test_convolutional_layer() -> None:
    positions = 2 * 2 * 2
    work = roofline.count(small_case("em_all_parents"))
    assert work.routing_operations == 6 * positions * 18 * 3 * 160  # 18 places, 3 parents, 160 as above
    assert work.full_numbers == 3 * (2 * 25 * 2 * 17 + 18 * 3 * 16 + 6) + 2 * positions * 3 * 17


def test_dense_layer() -> None:
    work = roofline.count(small_case("dynamic"))
    assert work.routing_operations == 6 * (2 * 6 * 3) * (4 * 5 + 2 * 5 + 5)
    assert work.full_numbers == 3 * (2 * 6 * 4 + 6 * 4 * 3 * 5 + 3 * 5) + 2 * 2 * 3 * 5


def test_network_of_4_channels() -> None:
    work = roofline.count(small_case("capsnet"))
    children = 2 * 3 * 3  # at 21x21 pixels
    assert work.routing_operations == 6 * 2 * children * 10 * (8 * 16 + 3 * 16 + 2 * 16)
    convolutions = 2 * 4 * 13 * 13 * 81 + 3 * 16 * 3 * 3 * 4 * 81  # the images have no gradient
    decoder = 3 * (160 * 512 + 512 * 1024 + 1024 * 21 * 21)
    assert work.operations == 2 * 2 * (convolutions + decoder)


@pytest.mark.parametrize(
    ("model", "work"),
    [
        ("capsnet", Work(152_095_948_800, 1_840_250_880, 69_341_184, 86_182_112)),
        ("em_caps_paper", Work(347_619_328, 10_376_183_808, 4_280_320, 10_550_212, 231_260_160)),
        ("cnn_small", Work(393_150_464, 0, 2_261_312, 623_410)),
    ],
)
@pytest.mark.parametrize("backend", ["matmul", "reference"])
def test_networks_at_full_size(model: str, work: Work, backend: str) -> None:
    overrides = ["device=cpu", f"models=[{model}]", f"backends=[{backend}]", "precisions=[32-true]"]
    ((*_, case),) = model_groups(compose("bench", overrides))
    assert roofline.count(case) == work  # counted layer by layer from the shapes


def test_bfloat16_is_half_as_long_and_faster() -> None:
    work = Work(operations=8, routing_operations=1, numbers=100, full_numbers=10)
    full, half = work.lower_bounds(RATES, "32-true"), work.lower_bounds(RATES, "bf16-mixed")
    assert (full["bytes"], half["bytes"]) == (440, 240)
    assert half["floor_arithmetic_seconds"] == pytest.approx(3e-9)


def test_a_network_that_is_told_a_change_has_its_work() -> None:
    overrides = ("model=transforming_autoencoder", "data=mnist_pairs")
    sizes = {"batch_size": 2, "image_shape": [1, 28, 28], "num_classes": 10}
    case = Case("model", "transforming_autoencoder", "plain", "32-true", "cpu", sizes, overrides)
    products = 784 * 300 * 2 + 600 * 784 * 3  # of the image no gradient is needed
    assert roofline.count(case).operations >= 2 * 2 * products
