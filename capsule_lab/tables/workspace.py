"""A table in W&B: ``python -m capsule_lab.report table=smoke workspace=write``, or ``upload`` to where its runs are."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from capsule_lab.errors import RunError, one_line

STEP = "trainer/global_step"  # as Lightning's logger calls it
IMAGES = ["val/reconstructions", "val/confusion", "test/confusion"]


def build(table: Any, *, project: str, entity: str = "") -> Any:
    """The ``wandb_workspaces`` Workspace of a table: its runs by row, mean and standard deviation over seeds.

    Args:
        table: as ``tables.reader.read`` gives it; its runs are those of the group of its name.
        project: of W&B.
        entity: a user or team of W&B.

    Raises:
        RunError: if wandb-workspaces is not installed.
    """
    if find_spec("wandb_workspaces") is None:
        raise RunError("wandb-workspaces is not installed; expected pip install 'capsule-lab[workspace]'")
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    row = wr.Metric("JobType")  # as conf/logger/wandb.yaml has it
    over_seeds: dict[str, Any] = {"groupby": row, "groupby_aggfunc": "mean", "groupby_rangefunc": "stddev"}

    def lines(*metrics: str, title: str) -> Any:
        return wr.LinePlot(title=title, x=STEP, y=[*metrics], **over_seeds)

    def every(pattern: str, title: str) -> Any:
        return wr.LinePlot(title=title, x=STEP, metric_regex=pattern, **over_seeds)

    results = list(dict.fromkeys(column.metric for column in table.columns))
    sections = {
        "Results, mean and standard deviation over seeds": [
            *(wr.BarPlot(title=metric, metrics=[metric], **over_seeds) for metric in results),
            lines("val/error", title="validation error, %"),
            lines("train/error", title="training error, %"),
        ],
        "Loss": [lines("train/loss", title="training loss"), lines("val/loss", title="validation loss")],
        "Training, mean since the last point": [
            lines("train/loss_step", title="loss"),
            lines("train/error_step", title="error, %"),
            lines("train/gradient_norm", title="norm of the gradient"),
        ],
        "Routing": [
            lines("val/coupling_entropy", title="entropy of the couplings; of equal ones: 1"),
            lines("val/dead_capsules", title="class capsules that no image activates, %"),
            every("^val/activation_([^s]|s[^t])", "activation of each layer, mean"),
            every("^val/activation_std_", "activation of each layer, spread"),
            every("^val/dead_([^c]|c[^a])", "dead capsules of each layer, %"),
        ],
        "Schedules": [every("^schedule/", "learning rate, margin, …")],
        "Images": [wr.MediaBrowser(title=key, media_keys=[key], gallery_axis="run") for key in IMAGES],
    }
    return ws.Workspace(
        entity=entity,
        project=project,
        name=table.name,
        sections=[ws.Section(name=name, panels=panels, is_open=True) for name, panels in sections.items()],
        settings=ws.WorkspaceSettings(x_axis=STEP, max_runs=_runs_of(table)),
        runset_settings=ws.RunsetSettings(
            filters=ws.And(ws.Metric("Group") == table.name),
            groupby=[ws.Metric("JobType")],
            pinned_columns=[*(f"summary:{metric}" for metric in results), "tags:__ALL__"],
        ),
    )


def _runs_of(table: Any) -> int:
    """Columns without overrides of their own show two quantities of the same runs."""
    lines = {
        (row.name, row.overrides[column.name], column.overrides)
        for row in table.rows
        for column in table.columns
        if column.name in row.overrides
    }
    return len(lines) * len(table.seeds)


def as_json(workspace: Any) -> str:
    """What W&B is sent, validated by a model that wandb-workspaces (read from 0.4.13) gives to no public method."""
    return str(workspace._to_model().spec.model_dump_json(by_alias=True, exclude_none=True, indent=2))


def upload(workspace: Any) -> str:
    """Put it into its project, by default the user's own; returns its address.

    Raises:
        RunError: without an account, or if W&B does not take it.
    """
    import wandb

    try:
        workspace.entity = workspace.entity or wandb.Api().default_entity or ""
        return str(workspace.save().url)
    except wandb.errors.Error as error:
        raise RunError(
            f"W&B did not take the workspace ({one_line(error)}); log in with wandb login, name the "
            "project with project=… and entity=…, and try again"
        ) from error
