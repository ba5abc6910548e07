"""Export of a trained network for other programs: ONNX, ``torch.export`` and safetensors.

The first two are compared with the network before they are kept: on batches of 1, 7 and 64 images, so that a file with
a fixed batch is refused.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from capsule_lab import runs
from capsule_lab.errors import CapsuleLabError, ConfigError, MissingDataError, RunError, one_line
from capsule_lab.networks.base import AbstractNetwork, reconstructs
from capsule_lab.routing import AbstractRouting
from capsule_lab.runs.files import json_text, writing
from capsule_lab.runs.trust import BUILT
from capsule_lab.system.extras import require
from capsule_lab.system.files import atomically

Format = Literal["onnx", "torch_export", "safetensors"]

BATCHES = (1, 7, 64)  # ours: one image, an odd number, a usual batch
TOLERANCE = 1e-5  # ours: float32 in another order of sums differs by 1e-6
# parts of the configuration that a file keeps; the others name folders of the machine that trained the network
_RECORDED = (*BUILT, "seed", "trainer")
_FOLDERS = re.compile(
    r"(?<![^\s=:,\[{'\"])(?:file:/{0,2})?(?:~[^/\s]*|\.\.)?/(?!/)(?:[^\s,\]}'\"/]+/)*"
)
"""The folders of a path within the text of a list or a mapping, or of an address of a file."""

log = logging.getLogger(__name__)


class ExportedNetwork(nn.Module):
    """A network that returns a tuple of tensors, named ``output_names``: exported programs cannot return records.

    Logits are left out: those of small scores change by more than ``TOLERANCE`` if ``expm1`` is rounded differently.

    Args:
        network: the trained network.
        reconstruction: also return the decoder's reconstruction from the capsule of the predicted class.
    """

    def __init__(self, network: AbstractNetwork, *, reconstruction: bool = False) -> None:
        super().__init__()
        self.network = network
        self.reconstruction = reconstruction
        with torch.no_grad():
            self.output_names = [*self._outputs(torch.zeros(1, *network.image_shape))]

    def _outputs(self, images: Tensor) -> dict[str, Tensor]:
        output = self.network(images)
        outputs = {"scores": output.scores}
        if output.capsules is not None:
            outputs["poses"] = output.capsules.poses
        if self.reconstruction:
            predicted = output.ranking.argmax(1)
            outputs["reconstruction"] = cast(Any, self.network).reconstruct(output, predicted)
        return outputs

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs for float32 images ``(batch, channel, height, width)``."""
        return tuple(self._outputs(images).values())


def without_folders(value: Any, key: str) -> Any:
    """Return a value of a configuration without folders outside of the data, also in a list or a mapping.

    Of ``path`` and of paths that begin elsewhere, the last part is left; files of labels may be in folders of the data.
    """
    if isinstance(value, dict):
        return {name: without_folders(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item, key) for item in value]
    if not isinstance(value, str):
        return value
    path = PurePath(value)
    begins_elsewhere = path.is_absolute() or value.startswith("~") or ".." in path.parts
    return path.name if key == "path" or begins_elsewhere else value


def published_command(command: str) -> str:
    """Return a command without folders of this machine: of each path in it, the last part is left."""
    return shlex.join(map(_published, shlex.split(command)))


def _published(argument: str) -> str:
    key, equals, value = argument.partition("=")
    if not equals:
        return argument
    plain = value.strip("\"'")
    name = without_folders(plain, key.rpartition(".")[2])
    return f"{key}={_FOLDERS.sub('', value) if name == plain else name}"


def record_of(run: runs.Run) -> dict[str, Any]:
    """Return the record of a run for other files, in plain containers, without folders of this machine."""
    stored = runs.checkpoints.read_any(run.checkpoint)["capsule_lab"]
    config = {
        name: without_folders(value, name)
        for name, value in stored["config"].items()
        if name in _RECORDED
    }
    if "directory" in config["data"]:
        config["data"] = config["data"] | {"directory": None}
    return {
        "format": stored["format"],
        "version": stored["version"],
        "provenance": stored["provenance"],
        "start_from": stored.get("start_from"),
        "spec": stored["spec"],
        "seconds": stored["seconds"],
        "val": stored["val"],
        "class_counts": stored.get("class_counts"),
        "config": config,
        "step": run.step,
        "input_form": run.build_data().input_form,
    }


def export(run: runs.Run, to: Format, out: Path, *, reconstruction: bool = False) -> float:
    """Write a file, and return its largest difference from the network, relative to outputs above 1.

    Args:
        run: as returned by ``runs.open``.
        to: format of the file.
        out: the file.
        reconstruction: whether programs also return a reconstruction, see ``ExportedNetwork``.

    Raises:
        MissingPackageError: if the packages for ONNX are missing.
        ConfigError: if there is no decoder.
        RunError: if the network cannot be exported, or if the program differs from it; no file is left then.
    """
    record = record_of(run)
    if to == "safetensors":
        with writing(out):
            runs.checkpoints.write_safetensors(out, run.network.state_dict(), record)
        return 0.0
    run.check_classifies("an export")
    if to == "onnx":
        require("to=onnx", "export", "onnx", "onnxscript", "onnxruntime")
    if reconstruction and not reconstructs(run.network):
        raise ConfigError(
            f"reconstruction=true, but {run.checkpoint} has no decoder; expected reconstruction=false"
        )
    program_format = _FORMATS[to]
    metadata = _metadata(record, out)
    images = _images(run)
    network = ExportedNetwork(run.network, reconstruction=reconstruction).eval()
    with writing(out), atomically(out) as temporary, torch.no_grad():
        try:
            with _exportable(run.network), _quiet():
                example = images[:3]  # 3: sizes 0 and 1 would be made constants
                program_format.write(network, example, temporary, metadata)
                program = program_format.read(temporary)
                difference = _largest_difference(program, network, images)
        except OSError:
            raise
        except Exception as error:  # torch and ONNX raise many types of errors
            raise RunError(
                f"{_described(run.network)} cannot be exported to {to} ({type(error).__name__}: "
                f"{one_line(error)[:300]}); expected operators that it has and a batch of any size: use "
                "to=safetensors for this one"
            ) from error
        if not difference <= TOLERANCE:  # also if it is not a number
            raise RunError(
                f"the outputs of {out} differ from those of {run.checkpoint} by {difference:.1e}; expected at most "
                f"{TOLERANCE}: the file is removed, use to=safetensors"
            )
    return difference


def _metadata(record: dict[str, Any], out: Path) -> dict[str, str]:
    """Return what a program says about its network, as JSON by name."""
    facts = {
        "capsule_lab.record": record,
        "capsule_lab.classes": record["spec"]["classes"],
        "capsule_lab.input_form": record["input_form"],
    }
    return {name: json_text(value, out) for name, value in facts.items()}


def _described(network: nn.Module) -> str:
    routings = [part for part in network.modules() if isinstance(part, AbstractRouting)]
    names = sorted({type(routing).__name__ for routing in routings})
    return f"{type(network).__name__} with {', '.join(names) or 'no routing'}"


def index_entry(run: runs.Run, file: Path) -> dict[str, Any]:
    """Return the entry of a file of ``to=safetensors`` for ``runs/ready/index.json``."""
    metrics = runs.results.read_metrics(run.directory) or {}
    test = complete_test(run, metrics)
    error = test.get("error")
    content = file.read_bytes()
    return {
        "file": file.name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "parameters": sum(parameter.numel() for parameter in run.network.parameters()),
        "data": run.provenance["name"],
        "error": None if error is None else round(error, 4),
        "reconstruction": test.get("reconstruction"),
        "seconds": round(run.seconds),
        "command": published_command(metrics.get("command") or "") or None,
        "commit": metrics.get("commit"),
        "url": None,
    }


def complete_test(run: runs.Run, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the result of these weights on the whole test set; empty if there is none."""
    is_of_weights = (
        metrics.get("weights_tested") == run.checkpoint.stem
        and metrics.get("tested_step") == run.step
    )
    if not is_of_weights or runs.results.partial_test(metrics):
        return {}
    test: dict[str, Any] = metrics["test"]
    return test


def _images(run: runs.Run) -> Tensor:
    """Return enough validation images for ``BATCHES``, repeated if there are fewer; noise if there are none."""
    number = sum(BATCHES)
    batch = None
    reason = "the run was trained on all of them"
    try:
        check_data_is_here(run)
        batch = next(run.batches("val"), None)
    except CapsuleLabError as error:
        reason = one_line(error)
    if batch is None:
        log.warning(
            "there are no validation images (%s); the file is compared on random images", reason
        )
        generator = torch.Generator().manual_seed(0)
        return torch.rand(number, *run.spec.image_shape, generator=generator)
    return batch.images[torch.arange(number) % len(batch.images)]


def check_data_is_here(run: runs.Run) -> None:
    """Check that the data set of a run is on this machine, so that nothing is downloaded for a comparison.

    Raises:
        MissingDataError: if it is not.
    """
    real = getattr(run.build_data(), "real_source", None)
    if real is not None and run.config.data.get("source") != "standin" and not real.is_here():
        raise MissingDataError("the data set is not on this machine")


@contextmanager
def _exportable(network: nn.Module) -> Iterator[None]:
    """Sum votes with operators of torch in this block: other programs do not have the fused kernels."""
    routings = [part for part in network.modules() if isinstance(part, AbstractRouting)]
    backends = [routing.backend for routing in routings]
    try:
        for routing in routings:
            routing.backend = "matmul"
        yield
    finally:
        for routing, backend in zip(routings, backends, strict=True):
            routing.backend = backend


@contextmanager
def _quiet() -> Iterator[None]:
    for name in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn about their own code
        yield


Program = Callable[[Tensor], Any]


def _largest_difference(program: Program, network: ExportedNetwork, images: Tensor) -> float:
    """Return the largest difference of any output in ``BATCHES``, relative to outputs above 1; NaN if one is NaN."""
    differences = []
    for batch in images.split(BATCHES):
        for found, expected in zip(program(batch), network(batch), strict=True):
            scale = expected.abs().max().clamp_min(1)
            differences.append((found - expected).abs().max() / scale)
    return float(torch.stack(differences).amax())  # amax keeps NaN


def _any_batch() -> tuple[dict[int, Any]]:
    """Return torch's description of the inputs: the first axis of the images has any size."""
    return ({0: torch.export.Dim("batch", min=1)},)


def _write_onnx(
    network: ExportedNetwork, images: Tensor, path: Path, metadata: dict[str, str]
) -> None:
    program = torch.onnx.export(
        network,
        (images,),
        dynamo=True,
        dynamic_shapes=_any_batch(),
        verbose=False,
        input_names=["images"],
        output_names=network.output_names,
    )
    assert program is not None
    program.model.metadata_props.update(metadata)
    program.save(str(path), external_data=False)


def _read_onnx(path: Path) -> Program:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def program(images: Tensor) -> list[Tensor]:
        outputs = session.run(None, {"images": images.numpy()})
        return [torch.from_numpy(output) for output in outputs]

    return program


def _write_torch_export(
    network: ExportedNetwork, images: Tensor, path: Path, metadata: dict[str, str]
) -> None:
    program = torch.export.export(network, (images,), dynamic_shapes=_any_batch(), strict=False)
    with path.open("wb") as file:  # torch refuses the name of a hidden file without an extension
        torch.export.save(program, file, extra_files=dict(metadata))


def _read_torch_export(path: Path) -> Program:
    return torch.export.load(path).module()


class _ProgramFormat(NamedTuple):
    """How a format of programs is written, with the metadata, and read for the comparison."""

    write: Callable[[ExportedNetwork, Tensor, Path, dict[str, str]], None]
    read: Callable[[Path], Program]


_FORMATS = {
    "onnx": _ProgramFormat(_write_onnx, _read_onnx),
    "torch_export": _ProgramFormat(_write_torch_export, _read_torch_export),
}
