from typing import Any

import pytest
from matplotlib.axes import Axes

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
    fgsm, pgd = figure.axes
    assert fgsm.get_title() == "FGSM"
    assert pgd.get_title() == "PGD"
    cnn, capsnet = "cnn, best.ckpt", "capsnet, best.ckpt"
    of_fgsm = looks(fgsm)
    assert list(of_fgsm) == [cnn, capsnet]
    assert of_fgsm[cnn] != of_fgsm[capsnet]
    assert looks(pgd) == {capsnet: of_fgsm[capsnet]}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == [cnn, capsnet]
    assert figure.get_suptitle().startswith("1,000 test images of stand-in for MNIST. ")
    first = fgsm.lines[0]
    assert first.get_xydata().tolist() == [[0, 98], [0.1, 20]]


def looks(axis: Axes) -> dict[str, tuple[str, str]]:
    """Colour and marker of the curves by name."""
    found = {}
    for line in axis.lines:
        if not line.get_label().startswith("_"):
            found[line.get_label()] = (line.get_color(), line.get_marker())
    return found


FOG = {"_target_": "capsule_studies.attacks.corruption", "kind": "fog"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "BIM"),
        ({"couplings": "equal"}, "BIM against equal couplings"),
        ({"source": "runs/other/checkpoints/last.ckpt"}, "BIM against other, last.ckpt"),
        ({"options": {"_target_": "capsule_studies.attacks.pgd", "norm": "l2"}}, "PGD in L2"),
        ({"options": FOG}, "corruption fog"),
        # of earlier records
        ({"options": {"_target_": "capsule_lab.attacks.random_signs"}}, "random signs"),
    ],
)
def test_attacks_are_called_by_what_was_done(changes: dict[str, Any], expected: str) -> None:
    assert attack_of(record("bim", "capsnet", **changes)) == expected
