"""affNIST: 320,000 affine versions of MNIST's test digits on 40x40 pixels (Tieleman 2013).

As in Sabour, Frosst and Hinton 2017, section 5.2, networks are trained on expanded MNIST and tested on affNIST.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from capsule_lab.data.formats import affnist as files
from capsule_lab.data.loader import Images, InMemory
from capsule_lab.data.mnist import MNISTFiles
from capsule_lab.data.mnist_expanded import PAD, ExpandedMNISTDataModule, placed
from capsule_lab.data.sources import AbstractSource, PublishedFiles
from capsule_lab.data.standins.affnist import (
    FACTORS,
    STANDIN_NAME,
    SyntheticAffNIST,
    standin_provenance,
)
from capsule_lab.data.standins.digits import StandinDigits
from capsule_lab.data.transforms import to_unit_interval
from capsule_lab.errors import MissingDataError, MissingPackageError, check_choice
from capsule_lab.types import Batch, DataSpec

AFFINE = "affine"  # name of a further validation set
AFFINE_WITHIN = "affine_within"  # the same, with the positions of the training only
_TEST_SEED = 0  # ours: one synthetic test set for all runs, like affNIST itself


class AffNISTFiles(PublishedFiles):
    """affNIST's test set in ``<directory>/affNIST``; see ``formats.affnist``."""

    name = files.NAME
    path = files.NAME
    file_names = f"{files.ARCHIVE} or {files.FILE}"
    sha256: dict[str, str]

    def is_here(self) -> bool:
        return self.folder.is_dir() and any(self.folder.iterdir())

    def is_complete(self) -> bool:
        self.sha256 = files.check(self.folder)
        return bool(self.sha256)

    def download(self, scratch: Path) -> None:
        files.download(scratch)

    def load(self, *, train: bool) -> Images:
        if train:
            raise ValueError("affNIST has a test set only; train on expanded MNIST")
        return files.load(self.folder)

    def provenance(self) -> dict[str, Any]:
        return {"name": f"real {self.name}", "sha256": self.sha256}


@dataclass
class _RealSource(AbstractSource):
    """Real MNIST for training, real affNIST for testing; with ``fallback``, its error names the stand-in data."""

    digits: MNISTFiles
    affine: AffNISTFiles
    fallback: bool

    def is_here(self) -> bool:
        return self.digits.is_here() and self.affine.is_here()

    def find(self) -> None:
        self.digits.find()
        try:
            self.affine.find()
        except (MissingDataError, MissingPackageError) as error:
            if not self.fallback:
                raise
            raise type(error)(
                f"{error}. Until then, runs train on real MNIST and test on {STANDIN_NAME} made from its test digits"
            ) from error

    def load(self, *, train: bool) -> Images:
        return (self.digits if train else self.affine).load(train=train)

    def provenance(self) -> dict[str, Any]:
        return _tested_on(self.digits, self.affine.provenance())


class _SyntheticSource(AbstractSource):
    """Digits for training, and for testing digits to be transformed: from ``real`` MNIST if its files exist.

    With ``required``, missing files are an error.
    """

    def __init__(self, real: MNISTFiles | None, *, required: bool) -> None:
        self.real = real
        self.required = required
        self.digits: AbstractSource = StandinDigits()

    def find(self) -> None:
        if self.real is None:
            return
        if self.required:
            self.real.find()
        if self.real.is_complete():
            self.digits = self.real

    def load(self, *, train: bool) -> Images:
        return self.digits.load(train=train)

    def provenance(self) -> dict[str, Any]:
        owner = "real MNIST" if self.digits is self.real else "the stand-in"
        name = f"{STANDIN_NAME} made from {owner}'s test digits"
        return _tested_on(self.digits, {"name": name, **standin_provenance(_TEST_SEED)})


def _tested_on(digits: AbstractSource, test: dict[str, Any]) -> dict[str, Any]:
    facts = placed(digits.provenance(), PAD)
    return facts | {"name": f"{facts['name']}; tested on {test['name']}", "affnist": test}


class AffNISTDataModule(ExpandedMNISTDataModule):
    """Expanded MNIST for training and validation, affNIST for testing; training digits are never rotated.

    affNIST's files are in ``<directory>/affNIST``, see ``formats.affnist``; for MNIST's files see ``MNISTFiles``.
    The provenance is "real" only if both sets are real. Without affNIST, ``source="auto"`` trains on real MNIST and
    tests on synthetic affNIST made from its test digits, with a warning; the provenance is then "standin", and
    its ``name`` describes both sets. Without MNIST, everything is made from the stand-in digits.

    Test batches have ``factors``: those of the real files are ``human_readable_transform``, in its order; those of
    synthetic ones are ``standins.affnist.FACTORS``.

    Args:
        affine_validation: also validate on a synthetic affNIST made from the validation digits, one version of each,
            the same in every epoch; logged as ``affine/error``. It shows how this error and the validation error
            develop together during training, without using the test digits. Affine digits are anywhere on the
            canvas: more than half of them move farther on an axis than any training digit, so that this error is in
            part one of positions.
        affine_within: the same, but each digit moves by at most ``shift`` pixels on each axis, as in training; logged
            as ``affine_within/error``. Its rotations, shears and scales are those of ``affine_validation``.
        digits: ``"real"`` uses real MNIST, and fails without it; with ``source="standin"``, the digits are then real
            and affNIST is synthetic. ``"auto"`` uses the bundled digits with ``source="standin"``.
        pad: must be 6, which gives affNIST's size.
        shift, options: see ``ExpandedMNISTDataModule``.
    """

    def __init__(
        self,
        *,
        affine_validation: bool = False,
        affine_within: bool = False,
        digits: Literal["auto", "real"] = "auto",
        pad: int = PAD,
        shift: int = PAD,
        **options: Any,
    ) -> None:
        if pad != PAD:
            raise ValueError(
                f"data.pad is {pad}; expected {PAD}, since affNIST's images have 40x40 pixels"
            )
        super().__init__(pad=pad, shift=shift, **options)
        check_choice("data.digits", digits, ("auto", "real"))
        asked = {
            "affine_validation": (AFFINE, affine_validation),
            "affine_within": (AFFINE_WITHIN, affine_within),
        }
        for option, (_, is_asked) in asked.items():
            if is_asked and self.validation == "none":
                raise ValueError(
                    f"data.{option} is true with data.validation=none, which leaves no digits to transform; "
                    "expected data.validation=first or stratified"
                )
        self.further_validations = tuple(name for name, is_asked in asked.values() if is_asked)
        mnist = MNISTFiles(self.directory)
        fallback = self.source == "auto"
        required = digits == "real"
        self.real_source = _RealSource(mnist, AffNISTFiles(self.directory), fallback=fallback)
        self.standin_source = _SyntheticSource(
            mnist if fallback or required else None, required=required
        )

    @property
    def spec(self) -> DataSpec:
        factors = FACTORS if self.uses_standin else ()  # affNIST's page does not name them
        return DataSpec(image_shape=(1, files.SIZE, files.SIZE), num_classes=10, factors=factors)

    def describe(self) -> dict[str, Any]:
        facts = self.image_source.provenance()
        for name in self.further_validations:
            made = f"{STANDIN_NAME} made from the validation digits"
            if name == AFFINE_WITHIN:
                made += f", moved by at most {self.shift} pixels"
            facts[f"{name}_validation"] = {"name": made, **standin_provenance(self.seed)}
        return facts

    def describe_test(self, counts: Mapping[str, int]) -> str:
        if not self.uses_standin:
            return super().describe_test(counts)
        versions = counts["test"]
        digits = min(versions, len(self.sets["test"].labels))  # in the order of SyntheticAffNIST
        return f"{versions} versions of {super().describe_test({'test': digits})}"

    def whole_test_size(self) -> int:
        return super().whole_test_size() * (files.VERSIONS if self.uses_standin else 1)

    def dataset(self, name: str) -> InMemory:
        if name in (AFFINE, AFFINE_WITHIN):
            if name not in self.sets:
                farthest = self.shift if name == AFFINE_WITHIN else None
                synthetic = SyntheticAffNIST(
                    self.sets["val"], self.seed, versions=1, farthest=farthest
                )
                self.sets[name] = synthetic.stored()
            return InMemory(self.sets[name], self.seed, fixed=True)
        if name == "test" and self.uses_standin:
            return SyntheticAffNIST(self.sets["test"], _TEST_SEED, size=self.eval_images)
        if name == "test":
            return InMemory(self.sets["test"], self.seed)
        return super().dataset(name)

    def transform_batch(self, batch: Batch, name: str) -> Batch:
        if name in ("test", AFFINE, AFFINE_WITHIN):  # affine versions are already placed
            return batch._replace(images=to_unit_interval(batch.images))
        return super().transform_batch(batch, name)
