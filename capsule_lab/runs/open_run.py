"""A run: its trained network, its data, its configuration; and how one is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from capsule_lab.config import to_container
from capsule_lab.errors import RunError, one_line
from capsule_lab.runs import checkpoints, directories

if TYPE_CHECKING:
    from capsule_lab.data.base import AbstractDataModule
    from capsule_lab.lit import AbstractCapsuleModule
    from capsule_lab.networks.base import AbstractNetwork
    from capsule_lab.types import Batch, DataSpec


TRUSTED = ("capsule_lab", "torch.nn", "torch.optim")
"""Packages whose classes and functions the configuration in a checkpoint may name: the file may be a download."""

_BUILT = ("data", "model", "module", "routing", "loss", "schedule", "optimizer")
"""Groups of that configuration from which ``Run`` builds objects."""


@dataclass(frozen=True)
class Run:
    """A trained network, and everything that its checkpoint knows about it.

    Attributes:
        module: the LightningModule with the trained weights: in eval mode, on the CPU, not compiled.
        config: the configuration of training, resolved.
        provenance: of the data of training.
        spec: the ``DataSpec`` that the network was built from.
        checkpoint: the file.
        directory: of the run; of a checkpoint file anywhere else, its folder.
        step: after how many training steps the weights were saved.
        seconds: of training until then.
    """

    module: AbstractCapsuleModule
    config: DictConfig
    provenance: dict[str, Any]
    spec: DataSpec
    checkpoint: Path
    directory: Path
    step: int
    seconds: float

    @property
    def network(self) -> AbstractNetwork:
        """The plain ``nn.Module`` inside of ``module``."""
        return self.module.network

    @cached_property
    def data(self) -> AbstractDataModule:
        """The DataModule of training, see ``data_with``."""
        return self.data_with({})

    def data_with(self, options: Mapping[str, Any]) -> AbstractDataModule:
        """A DataModule that fits the network, prepared but not yet set up.

        Args:
            options: of ``config.data`` that differ from training, such as ``{"test_crops": 13}``; with a
                ``_target_``, the whole configuration of other data instead.

        Raises:
            ConfigError: for an option that does not exist.
            DataError: if the data is not here.
            RunError: if images or classes are not those of the network, or if, without ``_target_``, only a stand-in
                is here for the real data of training, or the reverse.
        """
        from capsule_lab import build, check  # torch and Lightning

        config = OmegaConf.create({"data": self.data_config(options)})
        check.check(config)
        data = build.build_data(config)
        data.prepare_data()
        if "_target_" not in options:
            checkpoints.check_same_source(self.checkpoint, self.provenance, data.provenance)
        network, given = (
            (spec.image_shape, spec.num_classes, spec.labels_per_image) for spec in (self.spec, data.spec)
        )
        if network != given:
            raise RunError(
                f"{self.checkpoint} takes image_shape={network[0]}, num_classes={network[1]}, labels_per_image="
                f"{network[2]}; the data has {given[0]}, {given[1]}, {given[2]}: name other data with data=…"
            )
        return data

    def data_config(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of the data that ``data_with`` builds, in plain containers."""
        config = OmegaConf.create({"data": {} if "_target_" in options else self.config.data})
        config.data.merge_with(options)
        return dict(to_container(config)["data"])

    def batches(self, split: str) -> Iterator[Batch]:
        """Every ``Batch`` of a split of ``data``, as the network takes it: transformed, not augmented, on the CPU.

        Args:
            split: ``"train"``, ``"val"`` or ``"test"``. Of several validation sets, the first; of a test set in
                parts, one part after another.
        """
        self.data.setup({"train": "fit", "val": "validate", "test": "test"}[split])
        loaders = getattr(self.data, f"{split}_dataloader")()
        if not isinstance(loaders, list):
            loaders = [loaders]
        for loader in loaders[:1] if split == "val" else loaders:
            for stored in loader:
                yield self.data.on_after_batch_transfer(stored, 0)


def open(path: str | Path, *, trust: Sequence[str] = ()) -> Run:  # noqa: A001
    """The run in a directory, with its best weights, or else its last; or that of a checkpoint file.

    Args:
        path: ``runs/…``, or a ``.ckpt`` file.
        trust: packages whose classes and functions the configuration in the checkpoint may name, beside ``TRUSTED``:
            those of networks, routings or data of one's own.

    Raises:
        RunError: if there is none, it cannot be read, another version of capsule_lab wrote it, or it names anything
            that is not trusted.
    """
    from capsule_lab import build  # torch and Lightning
    from capsule_lab.types import DataSpec

    file = directories.find_checkpoint(path)
    checkpoint = checkpoints.read(file)
    record = checkpoint["capsule_lab"]
    for target in _targets([record["config"].get(group) for group in _BUILT]):
        _check_trusted(target, (*TRUSTED, *trust), file)
    config = OmegaConf.create(record["config"])
    config.module.compile = False
    spec = DataSpec(**{**record["spec"], "image_shape": tuple(record["spec"]["image_shape"])})
    module = build.build_module(config, spec)
    module.network.load_state_dict(
        {name.removeprefix("network."): value for name, value in checkpoint["state_dict"].items()}
    )
    return Run(
        module=module.eval(),
        config=config,
        provenance=record["provenance"],
        spec=spec,
        checkpoint=file,
        directory=directories.directory_of(file),
        step=checkpoint["global_step"],
        seconds=record["seconds"],
    )


def _targets(node: Any) -> Iterator[str]:
    """Every ``_target_`` in plain containers."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield str(node["_target_"])
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _targets(each)


def _check_trusted(target: str, packages: Sequence[str], file: Path) -> None:
    """Both the name and what it stands for are of a package: ``capsule_lab.environment.subprocess.run`` is not."""

    def trusted(name: str) -> bool:
        return any(f"{name}.".startswith(f"{package}.") for package in packages)

    try:
        module = get_object(target).__module__ if trusted(target) else ""
    except Exception as error:  # of the import
        raise RunError(f"{file} was trained with {target}, which cannot be imported: {one_line(error)}") from error
    if not trusted(module):
        raise RunError(
            f"{file} names {target}; expected classes of {', '.join(packages)}: if you trust it, trust=[<its package>]"
        )
