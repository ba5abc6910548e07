"""Data sets: one file each, every one with an honest stand-in."""

from capsule_lab.data.affnist import AffNISTDataModule
from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.cifar10 import CIFAR10DataModule
from capsule_lab.data.mnist import MNISTDataModule
from capsule_lab.data.mnist_expanded import ExpandedMNISTDataModule
from capsule_lab.data.multimnist import MultiMNISTDataModule
from capsule_lab.data.smallnorb import SmallNORBDataModule
from capsule_lab.data.svhn import SVHNDataModule

__all__ = [
    "AbstractDataModule",
    "AffNISTDataModule",
    "CIFAR10DataModule",
    "ExpandedMNISTDataModule",
    "MNISTDataModule",
    "MultiMNISTDataModule",
    "SVHNDataModule",
    "SmallNORBDataModule",
]
