"""What summary and evaluation say about classes of unequal size, from a record."""

from pathlib import Path
from typing import Any

import pytest

from capsule_lab.runs.results import describe_classes, describe_constant, read_metrics
from capsule_lab.runs.summary import summary
from tests.helpers.commands import Trained

TEST = {"error": 3.0, "balanced_error": 50.0, "auroc": 0.7512}
RECALL = {"no": 100.0, "yes": 0.0}
ALWAYS = "(always answering the most frequent class: 3.00 %)"


def record(**images: int) -> dict[str, Any]:
    classes = {
        "images": images,
        "recall": RECALL,
        "constant_error": 3.0,
    }
    return {"test": TEST, "classes": classes}


def test_unbalanced_classes_are_described_with_the_lowest_recalls_first() -> None:
    described = describe_classes(record(no=97, yes=3), "test")
    assert described == (
        "balanced error 50.00 %, AUROC 0.751; "
        "lowest recall: yes 0.0 % of 3 images, no 100.0 % of 97 images"
    )


def test_the_three_lowest_recalls_are_described() -> None:
    many = record(a=50, b=40, c=30, d=20)
    many["classes"]["recall"] = {"a": 90.0, "b": 20.0, "c": 80.0, "d": 30.0}
    described = describe_classes(many, "test")
    _, _, lowest = described.partition("lowest recall: ")
    assert lowest.split(", ") == [
        "b 20.0 % of 40 images",
        "d 30.0 % of 20 images",
        "c 80.0 % of 30 images",
    ]


@pytest.mark.parametrize(("no", "is_shown"), [(5, False), (9, False), (10, True), (500, True)])
def test_classes_are_shown_if_one_has_twice_as_many_images(no: int, is_shown: bool) -> None:
    described = describe_classes(record(no=no, yes=5), "test")
    assert bool(described) is is_shown


SEVERAL = {"error": 40.0, "label_error": 8.0, "balanced_error": 20.0, "auroc": 0.9}


def test_the_error_of_single_labels_is_described_where_there_are_several() -> None:
    of_any_number = record(no=5, yes=5) | {"test": SEVERAL}
    expected = "label error 8.00 %, balanced error 20.00 %, AUROC 0.900"
    assert describe_classes(of_any_number, "test") == expected
    unbalanced = record(no=97, yes=3) | {"test": SEVERAL}
    assert describe_classes(unbalanced, "test").startswith(f"{expected}; lowest recall: yes")
    of_two = {"test": {"error": 10.0, "label_error": 6.0}}
    assert describe_classes(of_two, "test") == "label error 6.00 %"


def test_older_records_have_no_results_by_class() -> None:
    older = {"test": {"error": 3.0}}
    assert describe_constant(older) == ""
    assert describe_classes(older, "test") == ""
    assert describe_constant({"test": {}, "classes": {}}) == ""


def test_constant_answer_is_described() -> None:
    described = describe_constant(record(no=97, yes=3))
    assert described == f" {ALWAYS}"


def test_summary_shows_the_constant_answer_beside_the_error(trained: Trained) -> None:
    directory = Path("runs/a")
    chosen = {
        "model": "capsnet",
        "routing": "dynamic",
        "experiment": None,
    }
    classes = {
        "images": {"[b]no": 97, "yes": 3},
        "recall": {"[b]no": 100.0, "yes": 0.0},
        "constant_error": 3.0,
    }
    result = {**trained.result, "test": TEST, "classes": classes}
    lines = summary(result, directory, chosen)
    first, second, *_ = lines.splitlines()
    assert first == f"[bold]test error 3.00 %[/] {ALWAYS}  (best weights)"
    assert second.startswith("classes     balanced error 50.00 %, AUROC 0.751; lowest recall: yes")
    assert r"\[b]no 100.0 % of 97 images" in second


def test_record_of_a_run_has_results_by_class(trained: Trained) -> None:
    written = read_metrics(trained.directory)
    assert written is not None
    classes, test = written["classes"], written["test"]
    recalls, images = classes["recall"], classes["images"]
    assert [*recalls] == [str(label) for label in range(10)]
    assert sum(images.values()) == written["image_counts"]["test"]
    mean = sum(recalls.values()) / 10
    assert test["balanced_error"] == pytest.approx(100 - mean, abs=1e-4)
    assert 0 <= test["auroc"] <= 1
    assert {"balanced_error", "auroc"} <= written["val"].keys()
    assert 80 < classes["constant_error"] < 100
