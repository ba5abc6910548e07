"""Loggers of other packages: the facts that each records about a run; resumed runs of W&B, MLflow and trackio."""

from __future__ import annotations

import logging
import secrets
import shlex
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from omegaconf import DictConfig

from capsule_lab.config.composition import to_container
from capsule_lab.errors import one_line
from capsule_lab.lit.lightning_internals import drop_anonymous
from capsule_lab.runs.directories import hash_in
from capsule_lab.system.extras import require
from capsule_lab.system.files import atomically, read_regular

log = logging.getLogger(__name__)

_LONGEST_TAG, _LONGEST_NAME = 64, 128  # W&B's limits in characters
_LONGEST_IN_FILE = 1000  # ours: bytes; the name of a folder and a few digits


def run_tags(config: DictConfig, provenance: dict[str, Any]) -> dict[str, str]:
    """Return tags for model, data, routing (if there is one), source of the data, and seed."""
    targets = {"model": config.model, "data": config.data, "routing": config.model.get("routing")}
    named = {
        key: node["_target_"].rpartition(".")[2]
        for key, node in targets.items()
        if node is not None
    }
    facts = {"source": str(provenance["source"]), "seed": str(config.seed)}
    return {**named, "data": named["data"].removesuffix("DataModule"), **facts}


def with_names(config: DictConfig, directory: Path, overrides: Iterable[str]) -> DictConfig:
    """Return a copy of the configuration with a ``name`` for every logger without one.

    It consists of model and data, as in the directory's name, and the ``overrides``, groups first; the seed is a tag.
    """
    named = config.copy()
    changes = [
        entry
        for entry in overrides
        if not entry.startswith(("model=", "data=", "seed=", "logger", "callbacks"))
    ]
    changes.sort(
        key=lambda override: "." in override.partition("=")[0]
    )  # the routing before its options
    name = " ".join([directory.name.partition(f"-{hash_in(directory)}")[0], *changes])
    for options in (named.get("logger") or {}).values():
        if options and options.get("name", "") is None:
            options.name = name[:_LONGEST_NAME]
    return named


@rank_zero_only
def log_run_facts(loggers: Iterable[Any], config: DictConfig, provenance: dict[str, Any]) -> None:
    """Log configuration, provenance and tags to every logger that records them."""
    for logger in loggers:
        tags = run_tags(config, provenance)
        logger.log_hyperparams({"config": to_container(config), "provenance": provenance})
        if isinstance(logger, WandbLogger):
            run = logger.experiment
            seed = f"seed {tags.pop('seed')}"
            names = filter(None, [*(run.tags or ()), *tags.values(), seed, run.group])
            run.tags = list(dict.fromkeys(name[:_LONGEST_TAG] for name in names))
        elif isinstance(logger, MLFlowLogger):
            for key, value in tags.items():
                logger.experiment.set_tag(logger.run_id, key, value)


def close_loggers(loggers: Iterable[Any], *, failed: bool) -> None:
    """End the run of every logger, as failed or not; otherwise W&B would log the next run of the process into it."""
    for logger in loggers:
        logger.finalize("failed" if failed else "success")
    if "wandb" in sys.modules:
        import wandb

        if wandb.run is not None and wandb.run.offline:
            log.info(
                "to upload this run to W&B: wandb sync %s",
                shlex.quote(str(Path(wandb.run.dir).parent)),
            )
        wandb.finish(exit_code=int(failed))


class WeightsAndBiases(WandbLogger):
    """Logs a run to W&B, and prints its link; for an offline run, ``close_loggers`` logs the command for the upload.

    The options are those of ``WandbLogger`` and ``wandb.init``.
    """

    def __init__(self, *, mode: str, **options: Any) -> None:
        output = {"silent": True} if mode == "offline" else {"quiet": True}
        super().__init__(**{"mode": mode, "settings": output, **options})
        drop_anonymous(self)


class TensorBoard(TensorBoardLogger):
    """Logs a run to TensorBoard's files in its directory. The options are those of ``TensorBoardLogger``."""

    def __init__(self, save_dir: str, **options: Any) -> None:
        require("logger=tensorboard", "tensorboard", "tensorboard")
        super().__init__(save_dir, **options)


class MLflow(MLFlowLogger):
    """Logs a run to an MLflow server. A resumed run continues there: ``mlflow_run`` in its directory has its id.

    Args:
        save_dir: the run's directory.
        name: displayed name of the run.
        tracking_uri: address of the server, http://….
        experiment: the MLflow experiment, a list of runs.
        group, job_type: the table of the run, and its row in this table; both become tags.
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
        require("logger=mlflow", "mlflow", "mlflow")
        _check_server(tracking_uri)
        self.file = Path(save_dir) / "mlflow_run"
        self.continues = self.file.is_file()
        self.tracking_uri, self.experiment_name, self.opened = tracking_uri, experiment, False
        super().__init__(
            experiment_name=experiment,
            run_name=name,
            tracking_uri=tracking_uri,
            tags={key: value for key, value in {"table": group, "row": job_type}.items() if value},
            run_id=_read_name(self.file) if self.continues else None,
        )

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The MLflow client, with the run open."""
        if self.opened:
            return super().experiment
        import mlflow

        mlflow.set_tracking_uri(self.tracking_uri)
        mlflow.set_experiment(
            self.experiment_name
        )  # Lightning fails when two runs create it at once
        client = super().experiment
        self.opened = True  # run_id uses the client
        with atomically(self.file) as temporary:
            temporary.write_text(str(self.run_id), encoding="utf-8")
        client.update_run(self.run_id, status="RUNNING")  # it may have ended before
        return client

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Log parameters, which are immutable in MLflow, and a file with them, which a resumed run replaces."""
        self.experiment.log_dict(self.run_id, params, "config.json")
        if not self.continues:
            super().log_hyperparams(params)


class Trackio(Logger):
    """Logs a run to trackio's files on this machine, which ``trackio show`` displays. A resumed run continues there.

    Args:
        save_dir: the run's directory. Its file ``trackio_run`` has the name of the run: that of the directory and a
            random number, since directories of several folders may have the same name.
        project: trackio's project, a list of runs.
        group, job_type: the table of the run, and its row in this table, which becomes a part of the configuration.
    """

    def __init__(
        self,
        save_dir: str,
        project: str = "capsule-lab",
        group: str | None = None,
        job_type: str | None = None,
    ) -> None:
        require("logger=trackio", "trackio", "trackio")
        super().__init__()
        self.file, self.project, self.group = Path(save_dir) / "trackio_run", project, group
        self.continues = self.file.is_file()
        self.run_name = (
            _read_name(self.file)
            if self.continues
            else f"{self.file.parent.name}-{secrets.token_hex(3)}"
        )
        self.config: dict[str, Any] = {"row": job_type} if job_type else {}
        self.opened: Any = None

    @property
    def name(self) -> str:
        """The project."""
        return self.project

    @property
    def version(self) -> str:
        """The name of the run."""
        return self.run_name

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run of trackio."""
        if self.opened is None:
            import trackio

            resume = "allow" if self.continues else "never"
            self.opened = trackio.init(
                self.project,
                self.run_name,
                self.group,
                config=self.config,
                resume=resume,
                embed=False,
            )
            self.continues = True  # training, test and figures open it one after another
            with atomically(self.file) as temporary:
                temporary.write_text(self.run_name, encoding="utf-8", errors="backslashreplace")
        return self.opened

    @rank_zero_only
    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Keep parameters for the start of the run."""
        self.config |= params

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log metrics of a step."""
        self.experiment.log(dict(metrics), step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """End the run."""
        if self.opened is not None:
            self.opened.finish()
            self.opened = None


def _read_name(file: Path) -> str:
    """Return the name of a run in a file of its directory, which is sent to a server."""
    try:
        name = read_regular(file, inside=file.parent, most=_LONGEST_IN_FILE).decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise ValueError(
            f"{file} cannot be read ({reason}); remove it, and a new run starts there"
        ) from error
    return name


def _check_server(uri: str) -> None:
    """Check that the server accepts connections; MLflow itself would retry for minutes."""
    parts = urlsplit(uri)
    ports = {"http": 80, "https": 443}
    if parts.scheme not in ports:
        return
    try:
        socket.create_connection(
            (str(parts.hostname), parts.port or ports[parts.scheme]), timeout=10
        ).close()
    except OSError as error:
        raise ValueError(
            f"no MLflow server responds at {uri} ({error}); start one (mlflow server --backend-store-uri "
            "sqlite:///mlflow.db), or choose another: MLFLOW_TRACKING_URI=http://…"
        ) from error
