from typing import Any

import pytest

from capsule_studies.attacks.figures import accuracy_figure, attack_of
from tests.helpers.tables import ATTACKED


def record(attack: str, checkpoint: str, accuracy: float = 5.0, **more: Any) -> dict[str, Any]:
    return {
        **ATTACKED,
        "attack": {
            "0.1/accuracy": accuracy,
            "0.1/lowest": accuracy - 1,
            "0.1/highest": accuracy + 1,
        },
        "checkpoint": f"runs/{checkpoint}/checkpoints/best.ckpt",
        "options": {"_target_": f"capsule_studies.attacks.{attack}"},
        "images": 1000,
        "test": {"error": 2.0},
        "provenance": {"source": "standin", "name": "stand-in for MNIST: small digits"},
        **more,
    }


def test_a_panel_for_each_attack_in_which_networks_keep_their_looks() -> None:
    records = [
        record("fgsm", "cnn", 20.0),
        record("fgsm", "capsnet", 40.0),
        record("pgd", "capsnet"),
    ]
    figure = accuracy_figure(records, numbered=["another"])
    assert [axis.get_title() for axis in figure.axes] == ["FGSM", "PGD"]
    looks = [
        {
            line.get_label(): (line.get_color(), line.get_marker())
            for line in axis.lines
            if line.get_label()[0] != "_"
        }
        for axis in figure.axes
    ]
    assert [*looks[0]] == ["cnn, best.ckpt", "capsnet, best.ckpt"]
    assert len({*looks[0].values()}) == 2
    assert looks[1] == {"capsnet, best.ckpt": looks[0]["capsnet, best.ckpt"]}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*looks[0]]
    assert figure.get_suptitle().startswith("1,000 test images of stand-in for MNIST. ")
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[0, 98], [0.1, 20]]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "BIM"),
        ({"couplings": "equal"}, "BIM against equal couplings"),
        ({"source": "runs/other/checkpoints/last.ckpt"}, "BIM against other, last.ckpt"),
        ({"options": {"_target_": "capsule_studies.attacks.pgd", "norm": "l2"}}, "PGD in L2"),
        (
            {"options": {"_target_": "capsule_studies.attacks.corruption", "kind": "fog"}},
            "corruption fog",
        ),
        (
            {"options": {"_target_": "capsule_lab.attacks.random_signs"}},
            "random signs",
        ),  # of earlier records
    ],
)
def test_attacks_are_called_by_what_was_done(changes: dict[str, Any], expected: str) -> None:
    assert attack_of(record("bim", "capsnet", **changes)) == expected
