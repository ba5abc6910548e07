"""``make claim``: a claim is recomputed from an archive of run directories, or trained with new seeds."""

import functools
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from capsule_lab.commands.tables import read_table
from capsule_lab.errors import RunError
from capsule_studies.claims import claim as command
from capsule_studies.claims import recompute, retrain
from capsule_studies.claims.effects import effect_of
from capsule_studies.claims.read import RESULTS, measured
from capsule_studies.tests.judged_claims import CLAIMS
from tests.helpers.tiers import whole_but

BY_ID = {claim["id"]: claim for claim in CLAIMS}
LAST = max([*BY_ID, *(row["id"] for row in measured())])
read_once = functools.cache(read_table)
OF_ONE_TABLE = "C-010"  # the smallest archive: 20 runs
OF_TWO_TABLES = "C-004"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["id=C-9"],
            f"id=C-9 does not exist; did you mean C-009? docs/claims.md has C-001 to {LAST}",
        ),
        (["id=c-012"], "id=c-012 does not exist; did you mean C-012?"),
        ([], "id= does not exist; docs/claims.md has C-001"),
        (["id=C-001", "train=often"], "train is often; expected true or false"),
        (
            ["id=C-001", "train=true", "seeds=7"],
            "seeds is 7; expected two or more numbers, such as [200,201]",
        ),
        (["id=C-001", "train=true", "seeds=[a,b]"], "seeds is ['a', 'b']; expected two or more"),
        (["id=C-001", "train=true", "seeds=[7, 7]"], "expected two or more numbers"),
        (["id=C-001", "seeds=[7,8]"], "seeds needs train=true"),
        (["id=C-001", "model=capsnet"], "model=capsnet needs train=true"),
        (
            ["id=C-027", "train=true"],
            "C-027 has no table in sweeps/; train its runs with their own",
        ),
    ],
)
def test_wrong_arguments_get_one_sentence(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not printed.out


def test_a_claim_is_recomputed_from_its_run_directories(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([f"id={OF_ONE_TABLE}"]) == 0
    printed = capsys.readouterr().out
    assert "the run directories in results/iterations_or_gain_runs.tar.gz" in printed
    assert "agreement   yes" in printed
    assert "MNIST (real)" in printed
    # those of results/iterations_or_gain_comparisons.csv
    assert "difference  -0.080 (-0.27 to +0.11) points" in printed
    for file in printed.partition("files")[2].strip().split(", "):
        assert (RESULTS.parent / file).is_file()


@pytest.fixture
def tampered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of the table in which all runs with a learned gain have one error more in a hundred images."""
    original = RESULTS / "iterations_or_gain_runs.tar.gz"
    recompute.unpack(original, tmp_path / "unpacked")
    runs = pd.read_csv(RESULTS / "iterations_or_gain_runs.csv")
    for name in runs[runs["row"] == "1 iteration, learned gain"]["directory"]:
        file = tmp_path / "unpacked" / name / "metrics.json"
        result = json.loads(file.read_text())
        result["test"]["error"] += 1
        file.write_text(json.dumps(result))
    archive = tmp_path / "tampered.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "unpacked", ".")
    monkeypatch.setattr(recompute, "ROOT", tmp_path)
    monkeypatch.setattr(recompute, "archives_of", lambda _: {"iterations_or_gain": archive})
    return archive


@pytest.mark.usefixtures("tampered")
def test_other_run_directories_disagree(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([f"id={OF_ONE_TABLE}"]) == 1
    printed = capsys.readouterr().out
    assert "difference  +0.92 (" in printed
    assert "recorded    -0.080 (-0.27 to +0.11) points" in printed
    assert "agreement   NO" in printed


WITHOUT_ARCHIVE = ["C-027", "C-054", "C-056"]


@pytest.mark.parametrize("name", whole_but(WITHOUT_ARCHIVE, "C-027"))
def test_without_an_archive_the_csv_of_runs_is_used(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([f"id={name}"]) == 0
    printed = capsys.readouterr().out
    assert "_runs.csv, because there is no archive results/" in printed
    assert "agreement   nothing to compare" in printed


def test_without_an_archive_a_comparison_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The difference of the CSV of runs, not that of the comparisons."""
    shutil.copy(RESULTS / "iterations_or_gain_comparisons.csv", tmp_path)
    runs = pd.read_csv(RESULTS / "iterations_or_gain_runs.csv")
    runs.loc[runs["row"] == "1 iteration, learned gain", "value"] += 1
    runs.to_csv(tmp_path / "iterations_or_gain_runs.csv", index=False)
    monkeypatch.setattr(recompute, "ROOT", tmp_path)
    monkeypatch.setattr(recompute, "RESULTS", tmp_path)
    monkeypatch.setattr(recompute, "effect_of", lambda claim: effect_of(claim, tmp_path))
    found = recompute.recomputed(BY_ID[OF_ONE_TABLE])
    assert "there is no archive iterations_or_gain_runs.tar.gz" in found.source
    assert found.effect.found.estimate == pytest.approx(1 - 0.08, abs=1e-4)
    assert found.effect.found.test == "Welch's t-test"


OF_EVERY_TABLE = {tuple(recompute.files_of(claim)): name for name, claim in BY_ID.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_EVERY_TABLE.values())
def test_every_table_gives_the_recorded_differences(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([f"id={name}"]) == 0
    printed = capsys.readouterr().out
    archives = recompute.archives_of(BY_ID[name])
    if "attack_controls" in archives:
        # the archive has the trainings only
        assert "results/attack_controls_runs.tar.gz does not have its runs" in printed
    elif all(archive.is_file() for archive in archives.values()):
        assert "the run directories in results/" in printed


def test_run_directories_of_renamed_options_have_the_hash_of_today(tmp_path: Path) -> None:
    known = pd.read_csv(RESULTS / "configurations_now.csv")
    recorded, now = known.loc[known["recorded_hash"] != known["hash_now"]].iloc[0][
        ["recorded_hash", "hash_now"]
    ]
    for name in (recorded, "01234567"):
        directory = tmp_path / f"em_caps-mnist-{name}"
        directory.mkdir()
        (directory / "metrics.json").write_text(json.dumps({"config_hash": name, "steps": 7}))
    recompute._rename(tmp_path)
    found = {}
    for file in tmp_path.glob("*/metrics.json"):
        found[file.parent.name] = json.loads(file.read_text())
    assert found == {
        f"em_caps-mnist-{now}": {"config_hash": now, "steps": 7},
        "em_caps-mnist-01234567": {"config_hash": "01234567", "steps": 7},
    }


def packed(archive: Path, member: tarfile.TarInfo, content: bytes = b"any") -> Path:
    with tarfile.open(archive, "w:gz") as file:
        member.size = len(content) if member.isfile() else 0
        file.addfile(member, io.BytesIO(content))
    return archive


def members() -> Iterator[tarfile.TarInfo]:
    yield tarfile.TarInfo("../outside")
    yield tarfile.TarInfo("run/../../outside")
    link = tarfile.TarInfo("run")
    link.type = tarfile.SYMTYPE
    link.linkname = "../outside"
    yield link
    device = tarfile.TarInfo("outside")
    device.type = tarfile.CHRTYPE
    yield device


@pytest.mark.parametrize("member", [*members()], ids=["parent", "within", "link", "device"])
def test_an_archive_never_leaves_its_folder(tmp_path: Path, member: tarfile.TarInfo) -> None:
    archive = packed(tmp_path / "archive.tar.gz", member)
    with pytest.raises(RunError, match=r"archive\.tar\.gz cannot be unpacked"):
        recompute.unpack(archive, tmp_path / "inner" / "folder")
    assert not [*tmp_path.rglob("outside")]


@pytest.mark.parametrize("length", [0, 10, 3000], ids=["empty", "header", "half"])
def test_a_damaged_archive_gets_one_sentence(tmp_path: Path, length: int) -> None:
    content = (RESULTS / "iterations_or_gain_runs.tar.gz").read_bytes()
    archive = tmp_path / "archive.tar.gz"
    archive.write_bytes(content[:length])
    with pytest.raises(RunError, match="expected an archive of run directories"):
        recompute.unpack(archive, tmp_path / "folder")


PARTS = {
    "C-001": [("routing_pays", ["em_normalised_2", "em_normalised_1"], ["mnist"])],
    "C-004": [("algorithms_mnist", ["dynamic_2"], ["mnist"]), ("routing_pays", ["no_capsules"], ["mnist"])],
    "C-064": [("few_labels_matched", ["capsules", "no_capsules"], ["labels_25"])],
}  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), PARTS.items(), ids=PARTS)
def test_rows_and_columns_of_a_claim(name: str, expected: list[Any]) -> None:
    found = retrain.parts_of(BY_ID[name])
    parts = []
    for part in found:
        parts.append((part.table.name, part.rows, part.columns))
    assert parts == expected


def test_a_claim_of_two_columns_of_the_same_runs_trains_both() -> None:
    """The share of a change, minus the same for the common change, of two networks."""
    (part,) = retrain.parts_of(BY_ID["C-044"])
    assert {"inside_em", "inside_no_capsules"} <= {*part.rows}
    assert part.columns == ["maps_rotation", "maps_rotation_shift"]


@pytest.mark.whole
@pytest.mark.parametrize("name", sorted(BY_ID.keys() - {"C-027"}))
def test_every_claim_of_a_table_has_rows_and_columns_to_train(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrain, "read_table", read_once)
    for part in retrain.parts_of(BY_ID[name]):
        assert part.rows
        assert part.columns


def test_new_seeds_are_in_no_table_and_no_record() -> None:
    parts = retrain.parts_of(BY_ID["C-001"])
    seeds = retrain.new_seeds(parts)
    assert len(seeds) == 12, "as many as the table has"
    assert not {*seeds} & retrain.used_seeds()
    assert {0, 10, 21, 74, 107, 119} <= retrain.used_seeds()


class Sweep:
    """Stands for ``sweep``, and for the report of its runs: that of the recorded ones."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.commands: list[list[str]] = []
        self.reported: list[tuple[str, ...]] = []

    def run(self, arguments: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(arguments)
        return subprocess.CompletedProcess(arguments, self.status)

    def report(self, table: Any, folder: Path, overrides: list[str]) -> None:
        self.reported.append((table.name, *map(str, table.seeds), *overrides))
        for file in RESULTS.glob(f"{table.name}_*.csv"):
            shutil.copy(file, folder)


def replaced(monkeypatch: pytest.MonkeyPatch, sweep: Sweep) -> Sweep:
    monkeypatch.setattr(retrain.subprocess, "run", sweep.run)
    monkeypatch.setattr(retrain, "write_report", sweep.report)
    return sweep


def test_training_passes_the_rows_of_both_tables_to_sweep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = replaced(monkeypatch, Sweep())
    others = ["launcher=gpus", "hydra.launcher.per_gpu=4", "budget=9m", "trainer.max_steps=20"]
    arguments = [f"id={OF_TWO_TABLES}", "train=true", "seeds=[200,201]", *others]
    assert command.main(arguments) == 0
    start = [sys.executable, "-m", "capsule_lab", "sweep"]
    seeds = "seeds=[200,201]"
    assert sweep.commands == [
        [*start, "table=algorithms_mnist", "rows=[dynamic_2]", "columns=[mnist]", seeds, *others],
        [*start, "table=routing_pays", "rows=[no_capsules]", "columns=[mnist]", seeds, *others],
    ]
    assert sweep.reported == [
        ("algorithms_mnist", "200", "201", "trainer.max_steps=20"),
        ("routing_pays", "200", "201", "trainer.max_steps=20"),
    ]
    printed = capsys.readouterr().out
    assert "new         +0.12 (+0.014 to +0.22) points" in printed
    assert "seeds 200, 201" in printed
    assert "recorded    +0.12 (+0.014 to +0.22) points" in printed


def test_runs_that_fail_end_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replaced(monkeypatch, Sweep(status=1))
    assert command.main([f"id={OF_ONE_TABLE}", "train=true"]) == 2
    assert "not all runs of C-010 finished; the same command continues" in capsys.readouterr().err


@pytest.mark.slow
def test_a_claim_is_trained_with_new_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Four networks of two steps on the stand-in."""
    monkeypatch.setenv("CAPSULE_LAB_RUNS", str(tmp_path))
    tiny = ["data.source=standin", "trainer.max_steps=2", "model.channels=8"]
    assert command.main([f"id={OF_ONE_TABLE}", "train=true", "seeds=[500,501]", *tiny]) == 0
    printed = capfd.readouterr().out
    new = re.search("^new .*", printed, re.MULTILINE)[0]
    assert new.endswith("n = 2, a stand-in, seeds 500, 501")
    assert "NaN" not in new
    assert len([*tmp_path.glob("capsnet-mnist-*")]) == 4
