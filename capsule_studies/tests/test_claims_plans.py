"""Which comparisons are planned: results/plans.csv, from tables and runs in a small repository."""

import copy
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from capsule_lab.errors import ConfigError
from capsule_studies.claims import effects, plans, texts
from capsule_studies.claims.verdicts import Judged
from capsule_studies.tests.judged_claims import JUDGED
from tests.helpers.quoted_numbers import RESULTS

TABLE: dict[str, Any] = yaml.safe_load("""
metric: test/error
seeds: [0, 1]
base: [data=mnist, trainer.max_steps=1500]
columns:
  error: {label: error}
  drop: {label: drop, overrides: [data.source=real], metric: analyse/drop}
  drop_of_random: {label: drop of random, metric: analyse/drop_of_random}
rows:
  - {name: source, label: source, overrides: [model=cnn]}
  - {name: capsules, label: capsules, overrides: {"drop*": [model=capsnet]}}
  - name: inside
    label: inside
    of: capsules
    by: analyse
    evaluate: {"drop*": [what=tree, images=500]}
    takes: {source: [source, checkpoint]}
comparisons:
  - {name: tree, rows: [inside], columns: [drop], against_column: drop_of_random, family: inside}
  - {name: errors, rows: [capsules], columns: [error], against: source, family: errors}
  - {name: other, rows: [inside], columns: [drop], against: source, family: inside}
""")
TREE, ERRORS, OTHER = TABLE["comparisons"]


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["base"], ["data=mnist"]),
        (["seeds"], [0]),
        (["folds"], 5),
        (["columns", "drop", "metric"], "analyse/other"),
        (["columns", "drop", "overrides"], ["data.source=standin"]),
        (["columns", "drop_of_random", "metric"], "analyse/other"),
        (["rows", 2, "evaluate"], {"drop*": ["what=tree", "images=1000"]}),
        (["rows", 2, "evaluate", "drop"], ["what=tree", "images=1000"]),
        (["rows", 2, "by"], "attack"),
        (["rows", 2, "of"], "source"),
        (["rows", 1, "overrides", "drop*"], ["model=em_caps"]),
        (["rows", 0, "overrides"], ["model=cnn_pooled"]),
        (["comparisons", 0, "margin"], 0.1),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_change_of_what_a_comparison_depends_on(keys: list[Any], value: Any) -> None:
    """Also of the row that is trained, and of the row whose weights the analysis uses beside it."""
    assert not plans._stands(_changed(keys, value), TABLE, TREE)


def test_a_metric_of_the_whole_table_is_that_of_its_columns() -> None:
    other = _changed(["metric"], "test/loss")
    assert not plans._stands(other, TABLE, ERRORS)
    assert plans._stands(other, TABLE, TREE), "each of its columns has a metric"


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["columns", "map"], {"label": "map", "metric": "analyse/map"}),
        (["rows", 2, "evaluate", "map*"], ["what=transforms"]),
        (["rows", 1, "overrides", "error"], ["model=em_caps"]),
        (["columns", "error", "label"], "error %"),
        (["comparisons", 1, "margin"], 0.1),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_change_of_what_a_comparison_does_not_use(keys: list[Any], value: Any) -> None:
    """Columns, evaluations and families of other comparisons."""
    now = _changed(keys, value)
    assert plans._stands(TABLE, now, TREE)


def test_a_family_may_become_larger_but_not_smaller() -> None:
    """A removed comparison would make the correction of the others weaker."""
    smaller = _changed(["comparisons"], [TREE, ERRORS])
    assert plans._stands(smaller, TABLE, TREE)
    assert not plans._stands(TABLE, smaller, TREE)


def test_a_removed_row_of_a_comparison_of_all_rows() -> None:
    comparison = {"name": "all", "columns": ["error"], "against": "source"}
    then = _changed(["comparisons"], [comparison])
    now = copy.deepcopy(then)
    del now["rows"][1:]
    assert plans._stands(then, then, comparison)
    assert not plans._stands(then, now, comparison)


def _changed(keys: list[Any], value: Any) -> dict[str, Any]:
    table = copy.deepcopy(TABLE)
    part = table
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    return table


class Repository:
    """A repository with one table and its results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("sweeps", "results"):
            (folder / name).mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.name", "a")
        self.git("config", "user.email", "a@b.c")

    def git(self, *arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, **files: str) -> str:
        """Write some results and commit everything; return the commit."""
        for suffix, text in files.items():
            (self.folder / "results" / f"table{suffix}").write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a commit")
        return self.git("rev-parse", "--short=12", "HEAD")

    def commit_table(self, table: dict[str, Any]) -> str:
        (self.folder / "sweeps" / "table.yaml").write_text(yaml.safe_dump(table))
        return self.commit()

    def plan(self, analysis: str, training: str, second: str | None = None) -> dict[str, Any]:
        """Return the plan of the comparison ``tree`` with the commits of its runs."""
        second = analysis if second is None else second
        runs = []
        for column in ("drop", "drop of random"):
            runs.append([column, "inside", 0, "capsule_studies.analyse", analysis])
            runs.append([column, "inside", 1, "capsule_studies.analyse", second])
        for seed in (0, 1):
            runs.append(["error", "capsules", seed, "capsule_lab.train", training])
        columns = ["column", "row", "seed", "command", "commit"]
        frame = pd.DataFrame(runs, columns=columns)
        frame["command"] = "python -m " + frame["command"] + " x=1"
        frame["directory"] = "run_" + frame["seed"].astype(str)
        frame["status"] = "done"
        frame.to_csv(self.folder / "results" / "table_runs.csv", index=False)
        line = {
            "comparison": "tree",
            "first": "inside",
            "first_column": "drop",
            "second": "inside",
            "second_column": "drop of random",
        }
        answers = pd.DataFrame([line])
        answers.to_csv(self.folder / "results" / "table_comparisons.csv", index=False)
        return plans.plans().iloc[0].to_dict()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.setattr(plans, "ROOT", tmp_path)
    monkeypatch.setattr(plans, "RESULTS", tmp_path / "results")
    _forget()
    yield Repository(tmp_path)
    _forget()


def _forget() -> None:
    plans._git.cache_clear()
    plans._at.cache_clear()


def test_a_comparison_that_stood_before_its_runs_is_planned(repository: Repository) -> None:
    commit = repository.commit_table(TABLE)
    plan = repository.plan(commit, commit)
    assert plan["planned"] == "yes"
    assert plan["results_known"] == "no"
    assert plan["commits_of_runs"] == commit
    assert plan["commits_of_trainings"] == commit
    assert plan["trained_before_plan"] == "no"
    assert plan["lines_of_family"] == 2


@pytest.mark.parametrize("suffix", [".csv", "_runs.csv", "_comparisons.csv", "_runs.tar.gz"])
@pytest.mark.parametrize("again", [True, False], ids=["kept", "removed"])
def test_any_results_of_a_table_were_known(
    repository: Repository, suffix: str, again: bool
) -> None:
    """Also results that were removed before the comparison was added."""
    repository.commit(**{suffix: "old results"})
    if not again:
        (repository.folder / "results" / f"table{suffix}").unlink()
        repository.commit()
    commit = repository.commit_table(TABLE)
    plan = repository.plan(commit, commit)
    assert plan["results_known"] == "yes"
    assert plan["planned"] == "no"


def test_results_in_the_commit_of_the_comparison_were_known(repository: Repository) -> None:
    """Whoever commits both has seen the results."""
    (repository.folder / "results" / "table.csv").write_text("results")
    commit = repository.commit_table(TABLE)
    plan = repository.plan(commit, commit)
    assert plan["results_known"] == "yes"
    assert plan["planned"] == "no"


def test_a_table_that_cannot_be_read_was_no_plan() -> None:
    assert plans._parsed("overrides: [model.hidden=[]]") == {}


def test_results_before_a_change_of_the_table_were_known(repository: Repository) -> None:
    """The comparison with other settings is another one, also if its runs have these settings."""
    repository.commit_table(_changed(["base"], []))
    repository.commit(**{"_runs.csv": "results with other settings"})
    commit = repository.commit_table(TABLE)
    plan = repository.plan(commit, commit)
    assert plan["results_known"] == "yes"
    assert plan["planned"] == "no"


def test_results_of_another_table_are_not_those_of_this_one(repository: Repository) -> None:
    repository.commit(_other_runs="", **{"s.csv": "another table"})
    commit = repository.commit_table(TABLE)
    assert repository.plan(commit, commit)["planned"] == "yes"


def test_runs_without_a_commit_have_no_plan(repository: Repository) -> None:
    commit = repository.commit_table(TABLE)
    plan = repository.plan("", commit)
    assert plan["planned"] == "unknown"
    assert plan["missing_commits"] == "not_recorded"
    assert repository.plan(commit, commit, second="")["planned"] == "unknown"
    assert repository.plan(commit, "")["trained_before_plan"] == "unknown"


def test_a_commit_that_looks_like_a_number_stays_text(repository: Repository) -> None:
    repository.commit_table(TABLE)
    plan = repository.plan("123456789e12", "123456789e12")
    assert plan["missing_commits"] == "123456789e12"


def test_no_commits_are_no_plan() -> None:
    assert plans._stood([], "table", TABLE, TREE) == "unknown"


def test_a_run_with_changes_that_are_not_committed_has_no_plan(repository: Repository) -> None:
    commit = repository.commit_table(TABLE)
    plan = repository.plan(commit, commit, second=f"{commit}-dirty")
    assert plan["planned"] == "unknown"
    assert plan["missing_commits"] == f"{commit}-dirty"


def test_a_commit_of_another_branch_is_not_accepted(repository: Repository) -> None:
    commit = repository.commit_table(TABLE)
    repository.git("switch", "-q", "-c", "other")
    other = repository.commit()
    repository.git("switch", "-q", "main")
    plan = repository.plan(other, commit)
    assert plan["planned"] == "unknown"
    assert plan["missing_commits"] == other


def test_a_run_of_several_commits_needs_the_plan_in_each(repository: Repository) -> None:
    first = repository.commit_table(_changed(["base"], []))
    second = repository.commit_table(TABLE)
    plan = repository.plan(f"{first}; {second}", second)
    assert plan["commits_of_runs"].split() == sorted([first, second])
    assert plan["planned"] == "no"


def test_networks_trained_before_the_plan_of_their_analysis(repository: Repository) -> None:
    before = repository.commit_table(_changed(["comparisons"], [ERRORS]))
    commit = repository.commit_table(TABLE)
    plan = repository.plan(commit, before)
    assert plan["planned"] == "yes"
    assert plan["commits_of_trainings"] == before
    assert plan["trained_before_plan"] == "yes"


@functools.cache
def _recorded() -> pd.DataFrame:
    return pd.read_csv(plans.FILE, keep_default_na=False).set_index(["table", "comparison"])


WITH_PLANS = []
for each in JUDGED:
    has_plan = "comparison" in each.claim and not texts.in_table([each], "C")
    if has_plan:
        WITH_PLANS.append(each)


@pytest.mark.parametrize("each", WITH_PLANS, ids=[each.claim["id"] for each in WITH_PLANS])
def test_the_page_says_which_networks_were_trained_before_the_plan(each: Judged) -> None:
    source = each.claim["comparison"]
    recorded = _recorded().loc[(source["file"], source["name"])]
    trained_before = recorded["planned"] == "yes" and recorded["trained_before_plan"] == "yes"
    assert ("; networks trained before the plan" in texts.plan(each)) is trained_before
    assert trained_before is (source["file"] == "inside_capsules" and recorded["planned"] == "yes")


@pytest.mark.parametrize(
    ("file", "name", "row", "column", "planned"),
    [
        ("routing_constant", "mnist_mean", "dynamic", "", 40),
        ("capsule_counts", "counts", "", "", 15),
    ],
)
def test_a_planned_test_that_was_not_made_counts_with_p_1(
    file: str, name: str, row: str, column: str, planned: int
) -> None:
    """Routing without statistics has no line of new ones; one difference is the same for every seed."""
    lines = pd.read_csv(RESULTS / f"{file}_comparisons.csv")
    line = lines[lines["comparison"] == name]
    line = line[line["first"].str.startswith(row)].iloc[0]
    of_family = lines[lines["family"] == line["family"]]
    made = of_family["p"].notna().sum()
    assert made < planned
    chosen = {"file": file, "name": name, "row": line["first"], "column": line["first_column"]}
    family_p = effects.effect_of({"comparison": chosen}).plan.family_p
    assert len(family_p) == planned
    assert [*family_p.values()].count(1) == planned - made


def test_the_test_of_a_plan_that_gives_a_reason_is_the_only_one() -> None:
    """Without a reason, seeds that could pair or not are compared both ways; a reason needs a plan."""
    planned = {"id": "C-096", "comparison": {"file": "few_labels_controls", "name": "capsules"}}
    later = {"id": "C-100", "comparison": {"file": "few_labels_controls", "name": "couplings"}}
    reason = "a seed draws the labels"
    assert effects.effect_of(planned).other is not None
    assert effects.effect_of({**planned, "pairing": reason}).other is None
    assert effects.effect_of(later).other is not None
    with pytest.raises(ValueError, match="C-100 has a reason for its pairing and no plan"):
        effects.effect_of({**later, "pairing": reason})


@pytest.mark.parametrize("value", ["inf", "nan"])
def test_a_value_that_is_not_finite_is_no_measurement(value: str) -> None:
    runs = pd.DataFrame({"seed": [0, 1], "value": ["1.5", value]})
    with pytest.raises(ConfigError, match=f"^the run of seed 1 has value {value}; expected a fin"):
        effects._values(runs)
