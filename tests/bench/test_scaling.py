"""One size of a layer grows."""

from __future__ import annotations

import pytest

from capsule_lab.bench import scale, scaling
from tests.helpers.bench import small_bench


@pytest.mark.parametrize(
    ("axis", "option", "values"),
    [
        ("batch", "batch_size", [1, 2, 4]),
        ("children", "child_types", [1, 2, 4, 8]),
        ("parents", "parents", [1, 2, 4, 8, 16]),
        ("iterations", "iterations", [1, 2, 3, 4, 6]),
        ("image_size", "grid", [3, 5, 7, 10]),
    ],
)
def test_sizes_along_an_axis(axis: str, option: str, values: list[int]) -> None:
    found = scaling.scaled(small_bench("batch_size=null", "backends=[matmul,fused]"), axis)
    assert [each.sizes[option] for each in found] == [value for value in values for _ in range(2)]
    assert [each.form for each in found] == ["matmul", "fused"] * len(values)
    assert all({**each.sizes, option: 0} == {**found[0].sizes, option: 0} for each in found)


def test_rows(calls: list[tuple[str, str]]) -> None:
    rows = scale(small_bench("scaling=children"))
    assert [(row["value"], row["votes"]) for row in rows] == [(n, 2 * 4 * 9 * n * 4) for n in (1, 2, 4, 8)]
    for row in rows:
        assert row["seconds_per_vote"] == pytest.approx(row["seconds_median"] / row["votes"] / 2)
