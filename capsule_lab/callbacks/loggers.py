"""Dashboards: what every one of them is told about a run, and MLflow's, where a resumed run goes on."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import MLFlowLogger, WandbLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from omegaconf import DictConfig

from capsule_lab.config import to_container
from capsule_lab.runs.files import write_text

_LONGEST_TAG = 64  # characters; W&B's limit
_PORTS = {"http": 80, "https": 443}


def labels(config: DictConfig, provenance: dict[str, Any]) -> dict[str, str]:
    """By what runs are told apart: model, data, routing if there is any, and whether the data is real."""
    targets = {"model": config.model, "data": config.data, "routing": config.model.get("routing")}
    named = {key: node["_target_"].rpartition(".")[2] for key, node in targets.items() if node is not None}
    return {**named, "data": named["data"].removesuffix("DataModule"), "source": str(provenance["source"])}


@rank_zero_only
def tell_loggers(loggers: Iterable[Any], config: DictConfig, provenance: dict[str, Any]) -> None:
    """Configuration, provenance and tags, to every logger that keeps such things."""
    known = labels(config, provenance)
    for logger in loggers:
        logger.log_hyperparams({"config": to_container(config), "provenance": provenance})
        if isinstance(logger, WandbLogger):
            run = logger.experiment
            words = filter(None, [*(run.tags or ()), *known.values(), run.group])
            run.tags = list(dict.fromkeys(word[:_LONGEST_TAG] for word in words))
        elif isinstance(logger, MLFlowLogger):
            for key, value in known.items():
                logger.experiment.set_tag(logger.run_id, key, value)


def close(loggers: Iterable[Any], *, failed: bool) -> None:
    """End what would otherwise flow into the next run of the same process: W&B keeps one run open.

    Args:
        loggers: of the trainer.
        failed: whether the run ended with an error, which dashboards show.
    """
    for logger in loggers:
        logger.finalize("failed" if failed else "success")
    if "wandb" in sys.modules:
        import wandb

        wandb.finish(exit_code=int(failed))


class MLflow(MLFlowLogger):
    """A run on an MLflow server. One that is resumed goes on in the same, whose id lies in its directory.

    Args:
        save_dir: the run's directory.
        name: shown for the run.
        tracking_uri: of the server, http://….
        experiment: what MLflow calls the runs that it lists together.
        group: the table that the run belongs to, a tag.
        job_type: the row of that table, a tag.

    Raises:
        ValueError: if mlflow is not installed, or no server answers.
    """

    def __init__(
        self,
        save_dir: str,
        name: str | None = None,
        tracking_uri: str = "http://127.0.0.1:5000",
        experiment: str = "capsule-lab",
        group: str | None = None,
        job_type: str | None = None,
    ) -> None:
        if find_spec("mlflow") is None:
            raise ValueError("logger=mlflow needs mlflow, which is not installed: pip install 'capsule-lab[mlflow]'")
        _knock(tracking_uri)
        self.file = Path(save_dir) / "mlflow_run"
        self.continues = self.file.is_file()
        super().__init__(
            experiment_name=experiment,
            run_name=name,
            tracking_uri=tracking_uri,
            tags={key: value for key, value in {"table": group, "row": job_type}.items() if value},
            run_id=self.file.read_text() if self.continues else None,
        )

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The client, after it has opened the run."""
        if self._initialized:
            return super().experiment
        import mlflow

        mlflow.set_tracking_uri(self._tracking_uri)
        mlflow.set_experiment(self._experiment_name)  # Lightning's own way fails when two runs create it at once
        client = super().experiment
        write_text(self.file, str(self._run_id))
        client.update_run(self._run_id, status="RUNNING")  # again, if it had ended
        return client

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """As parameters once, which MLflow lets nobody change; as a file, so that it says what was changed since."""
        self.experiment.log_dict(self.run_id, params, "config.json")
        if not self.continues:
            super().log_hyperparams(params)


def _knock(uri: str) -> None:
    """MLflow itself would ask a server that is not there for minutes."""
    parts = urlsplit(uri)
    if parts.scheme not in _PORTS:
        return
    try:
        socket.create_connection((str(parts.hostname), parts.port or _PORTS[parts.scheme]), timeout=10).close()  # ours
    except OSError as error:
        raise ValueError(
            f"no MLflow server answers at {uri} ({error}); start one (mlflow server --backend-store-uri "
            "sqlite:///mlflow.db), or name another: MLFLOW_TRACKING_URI=http://…"
        ) from error
