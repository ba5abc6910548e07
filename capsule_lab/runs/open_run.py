"""A run: its trained network, its data, its configuration; and how one is opened."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.compose import to_container
from capsule_lab.errors import RunError, one_line
from capsule_lab.runs import checkpoints, directories
from capsule_lab.runs.trust import check_targets, plain_value

if TYPE_CHECKING:
    import torch

    from capsule_lab.data.base import AbstractDataModule
    from capsule_lab.lit import AbstractModule
    from capsule_lab.networks.base import AbstractNetwork
    from capsule_lab.types import Batch, DataSpec

_MORE_BYTES = 2**28  # ours: for buffers that are not saved; our networks have up to a thousandth of it


@dataclass(frozen=True, repr=False)
class Run:
    """A trained network, and everything that its checkpoint knows about it.

    Attributes:
        module: the LightningModule with the trained weights: in eval mode, on the CPU, not compiled.
        config: the configuration of training, resolved. Only groups of ``trust.BUILT`` may be instantiated.
        provenance: of the data of training.
        spec: the ``DataSpec`` that the network was built from.
        checkpoint: the file.
        directory: of the run; of a checkpoint file anywhere else, its folder.
        step: after how many training steps the weights were saved.
        seconds: of training until then.
    """

    module: AbstractModule
    config: DictConfig
    provenance: dict[str, Any]
    spec: DataSpec
    checkpoint: Path
    directory: Path
    step: int
    seconds: float

    def __repr__(self) -> str:
        network, data = type(self.module.network).__name__, self.provenance["name"]
        return f"Run({self.checkpoint}: {network} at step {self.step}, trained on {data})"

    @property
    def network(self) -> AbstractNetwork:
        """The plain ``nn.Module`` inside of ``module``."""
        return cast("AbstractNetwork", self.module.network)  # or one for pairs, of the commands that take it

    def check_classifies(self, command: str) -> None:
        """Check that the network classifies images, as most commands need, and is not trained on pairs."""
        from capsule_lab.networks import AbstractPairNetwork  # with torch

        if isinstance(self.module.network, AbstractPairNetwork):
            raise RunError(
                f"{self.checkpoint} has a {type(self.module.network).__name__}, which draws images and does not "
                f"classify; {command} expects a network that does: what=poses and what=few_labels of analyse are for "
                "this one"
            )

    @cached_property
    def data(self) -> AbstractDataModule:
        """The DataModule of training, see ``data_with``."""
        return self.data_with({})

    def data_with(self, options: Mapping[str, Any]) -> AbstractDataModule:
        """A DataModule that fits the network, prepared but not yet set up.

        Args:
            options: of ``config.data`` that differ from training, such as ``{"test_crops": 13}``; with a
                ``_target_``, the whole configuration of other data, which need not be of the same source.
        """
        from capsule_lab.config import build, check  # torch and Lightning

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
        """The configuration of the data that ``data_with`` builds, in plain containers.

        A data directory that the checkpoint names and that is not here, as on another machine, is the default one.
        """
        from capsule_lab.data.download import data_directory  # with Lightning

        config = OmegaConf.create({"data": {} if "_target_" in options else self.config.data})
        recorded = config.data.get("directory")
        if recorded is not None and not data_directory(str(recorded)).is_dir():
            config.data.directory = None
        config.data.merge_with(options)
        return dict(to_container(config)["data"])

    def number_of_images(self, images: int | None, options: Mapping[str, Any]) -> dict[str, int]:
        """Options of the data for so many images of a split, if ``options`` of ``data_with`` do not leave fewer."""
        own = None if "_target_" in options else plain_value(self.config, "data.eval_images")
        fewer = options.get("eval_images", own)
        return {} if images is None else {"eval_images": images if fewer is None else min(images, fewer)}

    def batches(self, split: str) -> Iterator[Batch]:
        """Every ``Batch`` of a split of ``data``, as the network takes it: transformed, not augmented, on the CPU.

        Args:
            split: ``"train"``, ``"val"`` or ``"test"``. Of several validation sets, the first; of a test set in
                parts, one part after another.
        """
        for name, stored in stored_batches(self.data, split):
            yield self.data.transform_batch(stored, "val" if name == "train" else name)


def stored_batches(data: AbstractDataModule, split: str) -> Iterator[tuple[str, Batch]]:
    """Every ``Batch`` of a split of prepared data, as stored; and the name of its set, by which it is transformed."""
    data.setup({"train": "fit", "val": "validate", "test": "test"}[split])
    found = getattr(data, f"{split}_dataloader")()
    loaders = found if isinstance(found, list) else [found]
    names = {"train": ("train",), "val": data.val_names, "test": data.test_names}[split]
    for name, loader in list(zip(names, loaders, strict=False))[: 1 if split == "val" else None]:
        for stored in loader:
            yield name, stored


def open(path: str | Path, *, trust: Sequence[str] | str | None = ()) -> Run:  # noqa: A001
    """The run in a directory, with its best weights, or else its last; or that of a checkpoint file.

    Nothing is imported or called but what ``runs.trust`` allows.

    Args:
        path: ``runs/…``, or a ``.ckpt`` file.
        trust: packages whose classes and functions the configuration in the checkpoint may name, beside ours:
            those of networks, routings or data of one's own.
    """
    file = directories.find_checkpoint(path)
    checkpoint = checkpoints.read(file)
    record = checkpoint["capsule_lab"]
    check_targets(record.get("config"), trust, file)
    try:
        return _built(file, checkpoint, record)
    except RunError:
        raise
    except Exception as error:  # of any type: whatever may be missing in the record, or does not fit
        reason = one_line(getattr(error, "__cause__", None) or error)
        raise RunError(
            f"{file} cannot be rebuilt ({type(error).__name__}: {reason[:300]}); its record or its weights are not as "
            "capsule_lab writes them: use another checkpoint, or the version that wrote it"
        ) from error


def _built(file: Path, checkpoint: dict[str, Any], record: dict[str, Any]) -> Run:
    from capsule_lab.config import build  # torch and Lightning
    from capsule_lab.types import DataSpec

    config = OmegaConf.create(record["config"])
    config.module.compile = False
    facts: dict[str, Any] = record["spec"]
    facts = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    spec = DataSpec(**facts)
    stored = checkpoint["state_dict"]
    if (kind := type(stored)) not in (dict, OrderedDict):
        raise RunError(f"{file} has {kind.__name__} for its weights; expected a mapping: use another checkpoint")
    weights = {name.removeprefix("network."): value for name, value in dict.items(stored)}
    if sum(value.nbytes for value in weights.values()) > file.stat().st_size:  # one number in the place of many
        raise RunError(f"{file} is smaller than the weights in it; it was changed: use another checkpoint")
    _check_weights(config, spec, weights, file)
    module = build.build_module(config, spec)
    module.network.load_state_dict(weights)
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


def _check_weights(config: DictConfig, spec: DataSpec, weights: Mapping[str, torch.Tensor], file: Path) -> None:
    """Check that the network of a record has the weights of its file, before memory is taken for any.

    On torch's meta device sizes are worked out and nothing is stored. Parameters and buffers are counted on the way, so
    that a network of endless or larger layers is refused at once.
    """
    import torch  # slow to import
    from torch.nn.modules import module as hooks

    from capsule_lab.config import build

    most_bytes = 2 * sum(value.nbytes for value in weights.values()) + _MORE_BYTES  # ours: twice is ample
    registered, size = 0, 0

    def count(_: object, name: str, value: torch.Tensor | None) -> None:
        nonlocal registered, size
        registered, size = registered + 1, size + (0 if value is None else value.nbytes)
        if registered > 2 * len(weights) + 100 or size > most_bytes:
            raise RunError(f"its network has more than the {len(weights)} weights of this file, or a larger {name}")

    parameters = hooks.register_module_parameter_registration_hook(count)
    buffers = hooks.register_module_buffer_registration_hook(count)
    try:
        with torch.device("meta"):
            own = build.build_module(config, spec).network.state_dict()
    finally:
        parameters.remove()
        buffers.remove()
    for name in (*own, *weights):
        has, expected = (_described(each.get(name)) for each in (weights, own))
        if has != expected:
            raise RunError(
                f"{file} has {has} for {name}, and the network of its record has {expected}; its record or its weights "
                "are not as capsule_lab writes them: use another checkpoint, or the version that wrote it"
            )


def _described(weight: torch.Tensor | None) -> str:
    return "nothing" if weight is None else f"{str(weight.dtype).removeprefix('torch.')} of shape {tuple(weight.shape)}"
