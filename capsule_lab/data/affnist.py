"""affNIST: 320,000 affine versions of MNIST's test digits on 40x40 pixels, for networks that never saw one in training.

Tieleman 2013; used as in Sabour, Frosst and Hinton 2017, section 5.2: trained on expanded MNIST, tested on affNIST.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from capsule_lab.data.base import find_or_fetch
from capsule_lab.data.formats import affnist as files
from capsule_lab.data.loader import Images, InMemory
from capsule_lab.data.mnist_expanded import PAD, ExpandedMNISTDataModule, FixedPlaces
from capsule_lab.data.standins.affnist import FACTORS, STANDIN_NAME, SyntheticAffNIST, standin_provenance
from capsule_lab.data.transforms import to_unit_interval

AFFINE = "affine"
"""Name of the further validation set."""

_TEST_SEED = 0  # ours: one synthetic test set for all runs, as there is one affNIST


class AffNISTDataModule(ExpandedMNISTDataModule):
    """Trains and validates on expanded MNIST, tests on affNIST; no network sees a turned digit before that.

    affNIST's files lie in ``<directory>/affNIST``, see ``affnist_files``; MNIST's where ``MNISTDataModule`` has them.
    Provenance is "real" only where both are real. Without affNIST, ``source="auto"`` trains on real MNIST and
    tests on synthetic affNIST made from its test digits, and says so loudly; provenance is then "standin", and
    its ``name`` says which is which. Without MNIST, everything is made from the stand-in digits.

    Test batches have ``factors``: of affNIST's own files their ``human_readable_transform``, in its order; of the
    synthetic ones ``affnist_standin.FACTORS``.

    Args:
        affine_validation: beside the validation set, also look at a synthetic affNIST made of its digits, one version
            each, the same in every epoch; logged as ``affine/error``. It shows how far the two errors go together
            while training goes on, without the test digits.
        shift, **options: see ``ExpandedMNISTDataModule``; ``pad`` is 6, which gives affNIST's size.

    Raises:
        ValueError: for another ``pad``, or ``affine_validation`` without validation images.
    """

    def __init__(self, *, affine_validation: bool = False, shift: int = PAD, **options: Any) -> None:
        if options.get("pad", PAD) != PAD:
            raise ValueError(f"data.pad is {options['pad']}; expected {PAD}, as affNIST's images are of 40x40 pixels")
        super().__init__(shift=shift, **options)
        if affine_validation and self.validation == "none":
            raise ValueError(
                "data.affine_validation is true with data.validation=none, which leaves no digits to make it of; "
                "expected data.validation=first or stratified"
            )
        self.real_digits = False
        self.sha256: dict[str, str] = {}  # of affNIST's own files, once they are found
        if affine_validation:
            self.further_validations = (AFFINE,)

    @property
    def affine_folder(self) -> Path:
        """Where affNIST's own files lie."""
        return self.directory / files.NAME

    def find_real(self) -> str | None:
        problem = super().find_real()
        if problem is not None:
            return problem
        self.real_digits = True
        problem = find_or_fetch(
            files.NAME, self.affine_folder, self._is_whole, files.download,
            files=files.FILES_IN_WORDS, holds=files.NAME,
        )  # fmt: skip
        if problem is None or self.source == "real":
            return problem
        return f"{problem}. Until then it trains on real MNIST and tests on {STANDIN_NAME} made from its test digits"

    def _is_whole(self) -> bool:
        self.sha256 = files.check(self.affine_folder) or {}
        return bool(self.sha256)

    def prepare_data(self) -> None:
        super().prepare_data()
        if self.provenance["source"] != "real":
            self.spec = replace(self.spec, factors=FACTORS)

    def describe(self, *, real: bool) -> dict[str, Any]:
        facts = super().describe(real=self.real_digits)
        if self.further_validations:
            made = f"{STANDIN_NAME} made from the validation digits"
            facts[f"{AFFINE}_validation"] = {"name": made, **standin_provenance(self.seed)}
        if real:
            return facts | {
                "name": f"{facts['name']}; tested on real affNIST",
                "affnist": {"name": "real affNIST", "sha256": self.sha256},
            }
        digits = "real MNIST's test digits" if self.real_digits else "the stand-in's test digits"
        made = f"{STANDIN_NAME} made from {digits}"
        return facts | {
            "name": f"{facts['name']}; tested on {made}",
            "affnist": {"name": made, **standin_provenance(_TEST_SEED)},
        }

    def load(self, *, train: bool, real: bool) -> Images:
        if train or not real:
            return super().load(train=train, real=self.real_digits)
        return files.load(self.affine_folder)

    def setup(self, stage: str) -> None:
        first = stage == "test" and "test" not in self.sets
        super().setup(stage)
        if first and self._is_synthetic:
            self.provenance["test_images"] = f"{len(self.dataset('test'))} versions of {self.provenance['test_images']}"

    def dataset(self, name: str) -> InMemory:
        if name == AFFINE:
            if AFFINE not in self.sets:
                self.sets[AFFINE] = SyntheticAffNIST(self.sets["validation"], self.seed, versions=1).stored()
            return FixedPlaces(self.sets[AFFINE], self.seed)
        if name != "test":
            return super().dataset(name)
        if self._is_synthetic:
            return SyntheticAffNIST(self.sets["test"], _TEST_SEED, size=self.eval_images)
        return InMemory(self.sets["test"], self.seed)

    def transform(self, images: Tensor, key: Tensor, *, augment: bool) -> Tensor:
        if images.shape[1:] == self.spec.image_shape:  # affNIST, placed already
            return to_unit_interval(images)
        return super().transform(images, key, augment=augment)

    @property
    def _is_synthetic(self) -> bool:
        return self.provenance["source"] != "real"
