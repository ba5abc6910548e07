"""Data sets, one per file. To write another one, use ``AbstractDataModule``, ``AbstractSource`` and ``Images``.

This package exports every data set that a file of this folder defines. For editors,
``tests/test_type_checking_lists.py`` names the line that a new file adds here.
"""
# ruff: noqa: F401

from typing import TYPE_CHECKING

from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.loader import Images
from capsule_lab.data.sources import AbstractSource, PublishedFiles
from capsule_lab.system.discovery import classes_in

if TYPE_CHECKING:  # for editors and type checkers, which cannot list the folder
    from capsule_lab.data.affnist import AffNISTDataModule
    from capsule_lab.data.arrays import ArraysDataModule
    from capsule_lab.data.cifar10 import CIFAR10DataModule
    from capsule_lab.data.folder import PictureFolder
    from capsule_lab.data.image_pairs import ImagePairs, MNISTPairsDataModule
    from capsule_lab.data.mnist import AbstractMNISTLike, MNISTDataModule
    from capsule_lab.data.mnist_expanded import ExpandedMNISTDataModule
    from capsule_lab.data.mnist_like import (
        EMNISTDataModule,
        FashionMNISTDataModule,
        KMNISTDataModule,
    )
    from capsule_lab.data.multimnist import MultiMNISTDataModule
    from capsule_lab.data.own_pictures import AbstractOwnPictures
    from capsule_lab.data.smallnorb import SmallNORBDataModule
    from capsule_lab.data.smallnorb_pairs import SmallNORBPairsDataModule
    from capsule_lab.data.svhn import SVHNDataModule
else:
    _found = classes_in(__name__, AbstractDataModule)
    globals().update(_found)
    __all__ = ["AbstractSource", "Images", "PublishedFiles", *_found]
