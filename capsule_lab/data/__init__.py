"""Data sets: one file each. A data set of your own needs ``AbstractDataModule``, ``AbstractSource`` and ``Images``."""

from capsule_lab.data.affnist import AffNISTDataModule
from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.cifar10 import CIFAR10DataModule
from capsule_lab.data.image_pairs import ImagePairs, MNISTPairsDataModule
from capsule_lab.data.loader import Images
from capsule_lab.data.mnist import MNISTDataModule
from capsule_lab.data.mnist_expanded import ExpandedMNISTDataModule
from capsule_lab.data.multimnist import MultiMNISTDataModule
from capsule_lab.data.smallnorb import SmallNORBDataModule
from capsule_lab.data.smallnorb_pairs import SmallNORBPairsDataModule
from capsule_lab.data.sources import AbstractSource, PublishedFiles
from capsule_lab.data.svhn import SVHNDataModule

__all__ = [
    "AbstractDataModule",
    "AbstractSource",
    "AffNISTDataModule",
    "CIFAR10DataModule",
    "ExpandedMNISTDataModule",
    "ImagePairs",
    "Images",
    "MNISTDataModule",
    "MNISTPairsDataModule",
    "MultiMNISTDataModule",
    "PublishedFiles",
    "SVHNDataModule",
    "SmallNORBDataModule",
    "SmallNORBPairsDataModule",
]
