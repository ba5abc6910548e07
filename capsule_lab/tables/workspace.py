"""The W&B workspace of a table, built with W&B's own library ``wandb-workspaces`` (read from 0.4.13)."""

from __future__ import annotations

from typing import Any

import wandb
import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from capsule_lab.errors import RunError, one_line
from capsule_lab.tables.schema import Table

STEP = "trainer/global_step"  # Lightning's name
IMAGES = ("val/reconstructions", "val/confusion", "test/confusion")
WORST_IMAGES = "test/worst_images"
_CURVES = {
    "Loss": ("train/loss", "val/loss"),
    "Error, %": ("train/error", "val/error"),
    "Between validations": ("train/loss_step", "train/error_step", "train/gradient_norm"),
    "Routing": ("val/coupling_entropy", "val/dead_capsules"),
}
"""Sections with a plot for each of these metrics."""


def build(table: Table, *, project: str, entity: str = "") -> ws.Workspace:
    """Return the workspace of the runs in the group of a table: means over seeds, a line for each row.

    Args:
        table: its name is the group.
        project: the W&B project of the runs.
        entity: a user or team of W&B; empty for the user's own.
    """
    results = list(dict.fromkeys(column.metric for column in table.columns))
    over_seeds: dict[str, Any] = {
        "groupby": wr.Metric("JobType"),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
    }
    panels: dict[str, list[Any]] = {"Table": [wr.MarkdownPanel(markdown=_summary(table))]}
    for metric in results:
        panels["Table"].append(wr.BarPlot(title=metric, metrics=[metric], **over_seeds))
    panels["Worst test images"] = [wr.WeavePanelSummaryTable(table_name=WORST_IMAGES)]
    for section, metrics in _CURVES.items():
        panels[section] = []
        for metric in metrics:
            panels[section].append(wr.LinePlot(title=metric, x=STEP, y=[metric], **over_seeds))
    panels["Pictures"] = []
    for key in IMAGES:
        browser = wr.MediaBrowser(title=key, media_keys=[key], gallery_axis="run")
        panels["Pictures"].append(browser)

    sections = []
    for name, content in panels.items():
        sections.append(ws.Section(name=name, panels=content, is_open=True))
    runs = ws.RunsetSettings(
        filters=ws.And(ws.Metric("Group") == table.name),
        groupby=[ws.Metric("JobType")],
        pinned_columns=[f"summary:{metric}" for metric in results],
    )
    return ws.Workspace(
        entity=entity,
        project=project,
        name=table.name,
        sections=sections,
        settings=ws.WorkspaceSettings(x_axis=STEP),
        runset_settings=runs,
    )


def _summary(table: Table) -> str:
    """Return the table's published values in Markdown."""
    labels = [column.label for column in table.columns]
    lines = [f"**{table.paper}**", "", f"| job type | row | {' | '.join(labels)} |"]
    lines.append("|---" * (len(labels) + 2) + "|")
    for row in table.rows:
        published = [str(row.published.get(column.name, "")) for column in table.columns]
        lines.append(f"| {row.name} | {row.label} | {' | '.join(published)} |")
    return "\n".join([*lines, "", "Values are the published ones; the bars are ours."])


def as_json(workspace: ws.Workspace) -> str:
    """Return what ``save`` sends, from the model that the library gives to no public method."""
    spec = workspace._to_model().spec
    return str(spec.model_dump_json(by_alias=True, exclude_none=True, indent=2))


def save(workspace: ws.Workspace) -> str:
    """Save a workspace in its project; return its address.

    Raises:
        RunError: without an account, or if W&B rejects it.
    """
    try:
        workspace.entity = workspace.entity or wandb.Api().default_entity or ""
        return str(workspace.save().url)
    except (wandb.errors.Error, ValueError) as error:
        raise RunError(
            f"W&B did not accept the workspace ({one_line(error)}); log in with wandb login, name the project with "
            "project=… and entity=…, or write the workspace with out=workspace.json"
        ) from error
