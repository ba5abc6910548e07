"""W&B and MLflow: the facts that they record about a run, and how a resumed run continues in them."""

from __future__ import annotations

import logging
import shlex
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from omegaconf import DictConfig

from capsule_lab.config.composition import to_container
from capsule_lab.config.overrides import search_override
from capsule_lab.errors import one_line
from capsule_lab.lit.lightning_internals import drop_anonymous
from capsule_lab.runs.directories import hash_in
from capsule_lab.system.extras import require
from capsule_lab.system.files import atomically, read_regular

log = logging.getLogger(__name__)

_LONGEST_TAG = 64  # W&B's limit, in characters
_LONGEST_NAME = 128  # W&B's limit, in characters
_METRICS = ("test/error", "val/error")  # in TensorBoard's HPARAMS
_LONGEST_ID = 1000  # ours: bytes; MLflow's have 32


def run_tags(config: DictConfig, provenance: dict[str, Any]) -> dict[str, str]:
    """Return tags for model, data, routing (if there is one), source of the data, and seed."""
    tags = {
        "model": _class_name(config.model),
        "data": _class_name(config.data).removesuffix("DataModule"),
    }
    routing = config.model.get("routing")
    if routing is not None:
        tags["routing"] = _class_name(routing)
    return {**tags, "source": str(provenance["source"]), "seed": str(config.seed)}


def _class_name(node: Mapping[Any, Any]) -> str:
    return str(node["_target_"]).rpartition(".")[2]


def flat_options(config: DictConfig) -> dict[str, Any]:
    """Return the options under the names of their overrides, such as ``routing.iterations``.

    The name of an object itself has its class: ``routing`` is ``EMRouting``. An object that the network or the module
    takes from another group, such as ``model.routing``, is left out, and so are the options of loggers.
    """
    container = to_container(config)
    container.pop("logger", None)
    objects = [*container.values(), *container.get("loss", {}).values()]
    for name in ("model", "module"):
        group = container.get(name, {})
        for key, value in [*group.items()]:
            if isinstance(value, dict) and value in objects:
                del group[key]
    flat: dict[str, Any] = {}
    for key, value in container.items():
        flat |= dict(_flat(key, value))
    return flat


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each option at ``key`` and below."""
    if isinstance(value, list):
        value = [_class_name(item) if isinstance(item, dict) else item for item in value]
    if not isinstance(value, dict):
        yield key, value
        return
    if "_target_" in value:
        yield key, _class_name(value)
    for name, inner in value.items():
        if name not in ("_target_", "_partial_"):
            yield from _flat(f"{key}.{name}", inner)


def with_names(config: DictConfig, directory: Path, overrides: Iterable[str]) -> DictConfig:
    """Return a copy of the configuration with a ``name`` for every logger without one.

    It consists of model and data, as in the directory's name, and the ``overrides``, groups first; the seed is a tag.
    """
    left_out = ("model=", "data=", "seed=", "logger", "callbacks")
    changes = [override for override in overrides if not override.startswith(left_out)]
    changes.sort(key=_is_option)  # the routing before its options
    model_and_data = directory.name.partition(f"-{hash_in(directory)}")[0]
    name = " ".join([model_and_data, *changes])
    named = config.copy()
    for options in (named.get("logger") or {}).values():
        if options and options.get("name", "") is None:
            options.name = name[:_LONGEST_NAME]
    return named


def _is_option(override: str) -> bool:
    key, _, _ = override.partition("=")
    return "." in key


@rank_zero_only
def log_run_facts(
    loggers: Iterable[Any],
    config: DictConfig,
    provenance: dict[str, Any],
    overrides: Sequence[str] | None = None,
) -> None:
    """Log configuration, provenance and tags to every logger that records them.

    ``overrides`` are those of the command that trains; ``None`` if another command continues the loggers.
    """
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            _log_to_wandb(logger, config, provenance)
        elif isinstance(logger, TensorBoardLogger):
            _log_to_tensorboard(logger, config, provenance, overrides)
        else:
            logger.log_hyperparams({"config": to_container(config), "provenance": provenance})
        if isinstance(logger, MLFlowLogger):
            for key, value in run_tags(config, provenance).items():
                logger.experiment.set_tag(logger.run_id, key, value)


def _log_to_wandb(logger: WandbLogger, config: DictConfig, provenance: dict[str, Any]) -> None:
    run = logger.experiment
    options = flat_options(config)
    if run.sweep_id:  # W&B locks the options that its agent has chosen
        options = {key: value for key, value in options.items() if key not in run.config}
    logger.log_hyperparams({**options, "provenance": provenance})
    tags = run_tags(config, provenance)
    seed = f"seed {tags.pop('seed')}"
    names = [*(run.tags or ()), *tags.values(), seed]
    if run.group:
        names.append(run.group)
    run.tags = list(dict.fromkeys(name[:_LONGEST_TAG] for name in names))


def _log_to_tensorboard(
    logger: TensorBoardLogger,
    config: DictConfig,
    provenance: dict[str, Any],
    overrides: Sequence[str] | None,
) -> None:
    """Log texts, and the options for the dashboard HPARAMS, which looks up the errors among the logged metrics."""
    from torch.utils.tensorboard.summary import hparams  # imports tensorboard, an extra

    writer = logger.experiment
    if overrides is not None:
        command = shlex.join(["capsule-lab", "train", *overrides, *search_override()])
        writer.add_text("command", f"    {command}")
    facts = "\n".join(f"- **{name}**: {value}" for name, value in provenance.items())
    writer.add_text("provenance", facts)
    shown: dict[str, Any] = {}
    for key, value in flat_options(config).items():
        if not key.startswith("callbacks."):  # they would be the first columns
            shown[key] = value if isinstance(value, bool | int | float) else str(value)
    logger.log_hyperparams(shown)
    # the file has the names of metrics, not the values
    for summary in hparams(shown, dict.fromkeys(_METRICS, 0.0)):
        writer.file_writer.add_summary(summary)


def close_loggers(loggers: Iterable[Any], *, failed: bool) -> None:
    """End the run of every logger, as failed or not; otherwise W&B would log the next run of the process into it."""
    for logger in loggers:
        try:
            logger.finalize("failed" if failed else "success")
        except Exception as error:  # of a server, for example; the others are closed all the same
            log.warning("%s could not be closed (%s)", type(logger).__name__, one_line(error))
    if "wandb" in sys.modules:
        import wandb

        if wandb.run is not None and wandb.run.offline:
            folder = Path(wandb.run.dir).parent
            log.info("to upload this run to W&B: wandb sync %s", shlex.quote(str(folder)))
        wandb.finish(exit_code=int(failed))


class WeightsAndBiases(WandbLogger):
    """Logs a run to W&B, and prints its link; for an offline run, ``close_loggers`` logs the command for the upload.

    The options are those of ``WandbLogger`` and ``wandb.init``. ``job_type`` is ``train`` for a run without a group.
    """

    def __init__(self, *, mode: str, job_type: str | None = None, **options: Any) -> None:
        output = {"silent": True} if mode == "offline" else {"quiet": True}
        named = {"mode": mode, "settings": output, "job_type": job_type or "train"}
        super().__init__(**{**named, **options})
        drop_anonymous(self)


class TensorBoard(TensorBoardLogger):
    """Logs a run to TensorBoard's files in its directory. The options are those of ``TensorBoardLogger``."""

    def __init__(self, save_dir: str, **options: Any) -> None:
        require("logger=tensorboard", "tensorboard", "tensorboard")
        super().__init__(save_dir, **options)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log metrics without the epoch that Lightning adds: TensorBoard would show its curve first."""
        without_epoch = dict(metrics)
        without_epoch.pop("epoch", None)
        super().log_metrics(without_epoch, step)


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
        self.tracking_uri = tracking_uri
        self.experiment_name = experiment
        self.opened = False
        tags = {"table": group, "row": job_type}
        super().__init__(
            experiment_name=experiment,
            run_name=name,
            tracking_uri=tracking_uri,
            tags={key: value for key, value in tags.items() if value},
            run_id=_read_id(self.file) if self.continues else None,
        )

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The MLflow client, with the run open."""
        if self.opened:
            return super().experiment
        import mlflow

        mlflow.set_tracking_uri(self.tracking_uri)
        # Lightning fails when two runs create the experiment at once
        mlflow.set_experiment(self.experiment_name)
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


def _read_id(file: Path) -> str:
    """Return the id of a run, which is sent to a server, from a file of its directory."""
    try:
        return read_regular(file, inside=file.parent, most=_LONGEST_ID).decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise ValueError(
            f"{file} cannot be read ({reason}); remove it, and a new run starts there"
        ) from error


def _check_server(uri: str) -> None:
    """Check that the server accepts connections; MLflow itself would retry for minutes."""
    parts = urlsplit(uri)
    ports = {"http": 80, "https": 443}
    if parts.scheme not in ports:
        return
    address = (str(parts.hostname), parts.port or ports[parts.scheme])
    try:
        socket.create_connection(address, timeout=10).close()
    except OSError as error:
        raise ValueError(
            f"no MLflow server responds at {uri} ({error}); start one (mlflow server --backend-store-uri "
            "sqlite:///mlflow.db), or choose another: MLFLOW_TRACKING_URI=http://…"
        ) from error
