"""Data sets: one file each, every one with an honest stand-in."""

from capsule_lab.data.base import AbstractDataModule
from capsule_lab.data.files import DataError
from capsule_lab.data.mnist import MNISTDataModule
from capsule_lab.data.multimnist import MultiMNISTDataModule
from capsule_lab.data.smallnorb import SmallNORBDataModule

__all__ = ["AbstractDataModule", "DataError", "MNISTDataModule", "MultiMNISTDataModule", "SmallNORBDataModule"]
