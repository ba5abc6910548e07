"""A run with its trained network, data and configuration, and the function that opens it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from omegaconf import DictConfig, OmegaConf

from capsule_lab.config.composition import to_container
from capsule_lab.errors import RunError, check_choice, one_line, printable, suggest
from capsule_lab.runs import checkpoints, directories, ready_weights, results
from capsule_lab.runs.select_run import locate
from capsule_lab.runs.trust import check_targets, packages_of, plain_value, refuses_pickles
from capsule_lab.system.discovery import entries_of
from capsule_lab.system.files import expanded

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import torch

    from capsule_lab.data.base import AbstractDataModule
    from capsule_lab.lit import AbstractModule
    from capsule_lab.networks.base import AbstractNetwork
    from capsule_lab.types import Batch, DataSpec

_MOST_ITERATIONS = 1000  # ours: a hundred times what anyone uses; a file may ask for a billion
# ours: for buffers that are not saved; our networks have at most a thousandth of it
_MORE_BYTES = 2**28
_NAMES_SHOWN = 10  # ours: the names of ten classes fit into two lines


@dataclass(frozen=True, repr=False)
class Run:
    """A trained network with all information in its checkpoint.

    Commands add methods for notebooks with entry points of the group ``capsule_lab.run_methods``, functions whose first
    argument is the run: ``figure(name)``, ``analyse(what)`` and ``explore()``; the latter two are in capsule-studies.

    Attributes:
        module: the LightningModule with the trained weights: in eval mode, on the CPU, not compiled.
        config: the resolved training configuration. Only groups in ``trust.BUILT`` may be instantiated.
        provenance: provenance of the training data.
        spec: the ``DataSpec`` that the network was built from.
        checkpoint: the checkpoint file.
        directory: the run directory, or the folder of a checkpoint file outside a run directory.
        step: number of training steps of these weights.
        seconds: training time of these weights.
        class_counts: number of training images of each class; ``None`` for checkpoints of older versions.
        without_pickles: whether data in pickles is refused, ``trust=safetensors``.
    """

    module: AbstractModule
    config: DictConfig
    provenance: dict[str, Any]
    spec: DataSpec
    checkpoint: Path
    directory: Path
    step: int
    seconds: float
    class_counts: list[int] | None = None
    without_pickles: bool = False

    def __repr__(self) -> str:
        network, data = type(self.module.network).__name__, self.provenance["name"]
        return f"Run({self.checkpoint}: {network} at step {self.step}, trained on {data})"

    def _repr_html_(self) -> str:
        """Return a table of the facts that ``train`` prints, for a notebook."""
        network = self.module.network
        parameters = sum(parameter.numel() for parameter in network.parameters())
        facts = {
            "network": f"{type(network).__name__}, {parameters:,} parameters",
            "data": self.provenance["name"],
            "trained": f"{self.step} steps in {self.seconds / 60:.1f} min",
            "weights": str(self.checkpoint),
        }
        metrics = results.read_metrics(self.directory) or {}
        tested = metrics.get("test")
        if tested:
            described = results.describe_metrics("test", tested)
            facts["result of the run"] = "".join(described)
        facts["methods"] = ", ".join(f"run.{name}()" for name in _methods())
        rows = ""
        for name, value in facts.items():
            rows += f"<tr><th>{name}</th><td>{escape(value)}</td></tr>"
        return f"<table>{rows}</table>"

    if not TYPE_CHECKING:  # otherwise type checkers accept every name

        def __getattr__(self, name: str) -> Callable[..., Any]:
            methods = {} if name.startswith("_") else _methods()
            if name not in methods:
                raise AttributeError(f"a Run has no {name!r}; {suggest(name, methods)}")
            method = methods[name].load()
            return partial(method, self)

        def __dir__(self) -> list[str]:
            return [*super().__dir__(), *_methods()]

    @property
    def network(self) -> AbstractNetwork:
        """The plain ``nn.Module`` in ``module``."""
        # or a pair network, for commands that support it
        return cast("AbstractNetwork", self.module.network)

    def check_classifies(self, command: str, instead: str = "") -> None:
        """Check that the network classifies images, as most commands require, and was not trained on pairs.

        Args:
            command: what requires it, for the error message.
            instead: advice for a network that was trained on pairs.

        Raises:
            RunError: if it does not classify.
        """
        from capsule_lab.networks import AbstractPairNetwork  # imports torch

        if isinstance(self.module.network, AbstractPairNetwork):
            raise RunError(
                f"{self.checkpoint} has a {type(self.module.network).__name__}, which draws images and does not "
                f"classify; {command} expects a network that does{instead and f': {instead}'}"
            )

    def build_data(self, options: Mapping[str, Any] | None = None) -> AbstractDataModule:
        """Build the DataModule of training without its files, as predictions need it.

        Args:
            options: data options that differ from training.

        Raises:
            RunError: if the configuration in the file does not allow it.
        """
        from capsule_lab.config import build  # torch and Lightning

        config = self.config
        if options:
            config = OmegaConf.create({"data": self.data_config(options)})
        try:
            data: AbstractDataModule = build.build_data(config)
            data.use_spec(self.spec)
        except Exception as error:  # any type, for a record that was changed
            raise _cannot_be_rebuilt(f"{self.checkpoint} has data that", error) from error
        return data

    @cached_property
    def data(self) -> AbstractDataModule:
        """The DataModule of training; see ``data_with``."""
        return self.data_with({})

    def data_with(self, options: Mapping[str, Any]) -> AbstractDataModule:
        """Build a DataModule that fits the network, prepared but not yet set up.

        Args:
            options: data options that differ from training, such as ``{"test_crops": 13}``; with a ``_target_``, the
                whole configuration of other data, which may have another source.
        """
        from capsule_lab.config import build, check  # torch and Lightning
        from capsule_lab.types import TrainingData

        config = OmegaConf.create({"data": self.data_config(options)})
        check.check(config)
        data = build.build_data(config)
        if self.without_pickles:
            check_has_no_pickles(data)
        data.use_spec(self.spec)
        data.prepare_data()
        is_given = bool({"_target_", "path"} & options.keys())
        before, now = to_container(self.config.data), to_container(config.data)
        data.training = TrainingData(
            before, self.provenance, now, is_elsewhere=is_given and not _same_path(before, now)
        )
        if not is_given:
            instead = "choose other data with data=<name>"
            checkpoints.check_same_source(
                self.checkpoint, self.provenance, data.provenance, instead
            )
        takes, has = _Sizes.of(self.spec), _Sizes.of(data.spec)
        if takes != has:
            raise RunError(
                f"{self.checkpoint} takes image_shape={takes.image}, num_classes={takes.classes}, labels_per_image="
                f"{takes.labels}; the data has {has.image}, {has.classes}, {has.labels}: choose other data with data=…"
            )
        if is_given and self.spec.class_names != data.spec.class_names:
            takes_names, has_names = (
                _in_short(spec.class_names) for spec in (self.spec, data.spec)
            )
            raise RunError(
                f"{self.checkpoint} was trained on the classes {takes_names}; the data has {has_names}: choose other "
                "data with data=…"
            )
        return data

    def data_config(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data configuration for ``data_with``, in plain containers.

        If the data directory in the checkpoint does not exist, as on another machine, the default directory is used.
        """
        from capsule_lab.data.download import data_directory  # imports Lightning

        config = OmegaConf.create({"data": {} if "_target_" in options else self.config.data})
        recorded = config.data.get("directory")
        if recorded is not None and not data_directory(str(recorded)).is_dir():
            config.data.directory = None
        config.data.merge_with(options)
        return dict(to_container(config)["data"])

    def number_of_images(self, images: int | None, options: Mapping[str, Any]) -> dict[str, int]:
        """Return data options for at most ``images`` images of a split, or fewer if ``options`` limit them further."""
        if images is None:
            return {}
        limit = options.get("eval_images")
        if "eval_images" not in options and "_target_" not in options:
            limit = plain_value(self.config, "data.eval_images")
        return {"eval_images": images if limit is None else min(images, limit)}

    def batches(self, split: str) -> Iterator[Batch]:
        """Yield every ``Batch`` of a split of ``data`` as network input: transformed, not augmented, on the CPU.

        Args:
            split: ``"train"``, ``"val"`` or ``"test"``. If there are several validation sets, only the first is used;
                the parts of a test set follow one another.

        Raises:
            ValueError: if ``split`` is none of them.
        """
        for name, stored in stored_batches(self.data, split):
            yield self.data.transform_batch(stored, "val" if name == "train" else name)


def _in_short(names: Sequence[str]) -> str:
    """Return the first names of classes."""
    more = ", …" if len(names) > _NAMES_SHOWN else ""
    return printable(", ".join(names[:_NAMES_SHOWN]) + more)


def _same_path(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two configurations of data name the same path."""
    paths = [options.get("path") for options in (before, now)]
    if None in paths:
        return False
    first, second = (expanded(str(path)).resolve() for path in paths)
    return first == second


class _Sizes(NamedTuple):
    """What a network and the data that it receives must agree on."""

    image: tuple[int, int, int]
    classes: int
    labels: int

    @classmethod
    def of(cls, spec: DataSpec) -> _Sizes:
        return cls(spec.image_shape, spec.num_classes, spec.labels_per_image)


def _methods() -> dict[str, EntryPoint]:
    """Return the methods of a run for notebooks, by name."""
    return {entry.name: entry for entry in entries_of("capsule_lab.run_methods")}


def check_has_no_pickles(data: AbstractDataModule) -> None:
    """Raise a ``RunError`` if the files of a data set must be unpickled, for ``trust=safetensors``."""
    source = getattr(data, "real_source", None)
    if getattr(source, "has_pickles", False) and data.source != "standin":
        raise RunError(
            f"the files of {type(data).__name__} are pickles, which trust=safetensors refuses; expected other data, or "
            "data.source=standin"
        )


def stored_batches(data: AbstractDataModule, split: str) -> Iterator[tuple[str, Batch]]:
    """Yield the name of the set, which selects the transform, and each stored ``Batch`` of prepared data."""
    stages = {"train": "fit", "val": "validate", "test": "test"}
    check_choice("split", split, (*stages,))
    data.setup(stages[split])
    loaders = getattr(data, f"{split}_dataloader")()
    if not isinstance(loaders, list):
        loaders = [loaders]
    if split == "val":
        loaders = loaders[:1]
    names = {"train": ("train",), "val": data.val_names, "test": data.test_names}
    for name, loader in zip(names[split], loaders, strict=False):
        for stored in loader:
            yield name, stored


def open(path: str | Path, *, trust: Sequence[str] | str | None = ()) -> Run:  # noqa: A001
    """Open a run from its directory, with its best weights or else its last, or from a checkpoint file.

    Only classes and functions that ``runs.trust`` allows are imported or called.

    Args:
        path: ``runs/…``, ``last`` for the latest finished run, a ``.ckpt`` or ``.safetensors`` file, or the name of
            ready weights. Results for the latter are written to ``runs/<name>``.
        trust: packages besides ours whose classes and functions the configuration in the checkpoint may name, such
            as the package of your networks, routings or data. ``"safetensors"`` refuses files that must be unpickled:
            checkpoints other than ``.safetensors``, and CIFAR10's.
    """
    file = directories.find_checkpoint(locate(path))
    checkpoints.check_pickles(file, trust)
    directory = directories.directory_of(file)
    if str(path) in ready_weights.index():
        directory = directories.root() / str(path)
    directories.check_links(directory)
    checkpoint = checkpoints.read_any(file)
    record = checkpoint["capsule_lab"]
    check_targets(record.get("config"), trust, file)
    try:
        return _built(file, directory, checkpoint, record, refuses_pickles(trust))
    except RunError:
        raise
    except Exception as error:  # any type, if the record is incomplete or does not fit
        raise _cannot_be_rebuilt(str(file), error) from error


def _cannot_be_rebuilt(what: str, error: Exception) -> RunError:
    reason = one_line(getattr(error, "__cause__", None) or error)
    return RunError(
        f"{what} cannot be rebuilt ({type(error).__name__}: {reason[:300]}); its record or its weights "
        "are not in the format of capsule_lab: use another checkpoint, or the version that wrote it"
    )


def check_will_open(record: dict[str, Any], network: torch.nn.Module, file: Path) -> None:
    """Check before training that ``open`` will accept a checkpoint ``file`` with this record and this network.

    Packages besides ours, which ``open`` has to trust, are trusted.

    Raises:
        RunError: if it will not.
    """
    import torch  # slow to import

    try:
        checkpoints.check(record, file)
        check_targets(record["config"], packages_of(record["config"]), file)
        config, spec = _parsed(record)
        with torch.random.fork_rng(devices=()):
            _check_weights(config, spec, network.state_dict(), file)
        _check_record(spec, network)
    except Exception as error:  # any type, as in `open`
        raise RunError(
            f"the run is not started, because its checkpoints could not be opened afterwards: {one_line(error)[:500]}"
        ) from error


def _parsed(record: dict[str, Any]) -> tuple[DictConfig, DataSpec]:
    from capsule_lab.types import DataSpec

    config = OmegaConf.create(record["config"])
    config.module.compile = False
    facts: dict[str, Any] = dict(record["spec"])
    for name, value in facts.items():
        if isinstance(value, list):
            facts[name] = tuple(value)
    return config, DataSpec(**facts)


def _built(
    file: Path,
    directory: Path,
    checkpoint: dict[str, Any],
    record: dict[str, Any],
    without_pickles: bool,
) -> Run:
    from capsule_lab.config import build  # torch and Lightning

    config, spec = _parsed(record)
    weights = checkpoints.weights_of(checkpoint, file)
    _check_weights(config, spec, weights, file)
    module = build.build_module(config, spec)
    _check_record(spec, module.network)
    module.network.load_state_dict(weights)
    return Run(
        module=module.eval(),
        config=config,
        provenance=record["provenance"],
        spec=spec,
        checkpoint=file,
        directory=directory,
        step=checkpoint["global_step"],
        seconds=record["seconds"],
        class_counts=_class_counts(record, spec),
        without_pickles=without_pickles,
    )


def _class_counts(record: dict[str, Any], spec: DataSpec) -> list[int] | None:
    counts: list[int] | None = record.get("class_counts")
    if counts is None:
        return None
    are_counts = type(counts) is list and all(type(count) is int for count in counts)
    if not are_counts or len(counts) != spec.num_classes:
        raise ValueError(f"class_counts that are not {spec.num_classes} whole numbers")
    return counts


def _check_record(spec: DataSpec, network: torch.nn.Module) -> None:
    """Check facts that would fail, or not end, only when the network is used."""
    from capsule_lab.routing import AbstractRouting

    names = spec.classes
    are_texts = all(isinstance(name, str) for name in names)
    if names and not (are_texts and len(names) == spec.num_classes):
        raise ValueError(f"{len(names)} names of classes; expected {spec.num_classes} texts")
    for module in network.modules():
        if not isinstance(module, AbstractRouting):
            continue
        iterations = module.options.get("iterations", 1)
        if iterations > _MOST_ITERATIONS:
            raise ValueError(
                f"{iterations} iterations of routing; expected at most {_MOST_ITERATIONS}"
            )


def _check_weights(
    config: DictConfig, spec: DataSpec, weights: Mapping[str, torch.Tensor], file: Path
) -> None:
    """Check that the network in a record matches the weights in the file, before memory is allocated.

    The network is built on torch's meta device, which stores no values. Parameters and buffers are counted meanwhile,
    so that a network with too many or too large layers is rejected at once.
    """
    import torch  # slow to import
    from torch.nn.modules import module as hooks

    from capsule_lab.config import build

    bytes_in_file = sum(value.nbytes for value in weights.values())
    most_bytes = 2 * bytes_in_file + _MORE_BYTES  # ours: a factor of 2 is ample
    most_tensors = 2 * len(weights) + 100  # ours: likewise
    registered = 0
    size = 0

    def count(_: object, name: str, value: torch.Tensor | None) -> None:
        nonlocal registered, size
        registered += 1
        if value is not None:
            size += value.nbytes
        if registered > most_tensors or size > most_bytes:
            raise RunError(
                f"its network has more than the {len(weights)} weights in this file, or a larger {name}"
            )

    parameters = hooks.register_module_parameter_registration_hook(count)
    buffers = hooks.register_module_buffer_registration_hook(count)
    try:
        with torch.device("meta"):
            expected_state = build.build_module(config, spec).network.state_dict()
    finally:
        parameters.remove()
        buffers.remove()
    for name in (*expected_state, *weights):
        has = checkpoints.described(weights.get(name))
        expected = checkpoints.described(expected_state.get(name))
        if has != expected:
            raise RunError(
                f"{file} has {has} for {name}, but the network in its record has {expected}; its record or its "
                "weights are not in the format of capsule_lab: use another checkpoint, or the version that wrote it"
            )
