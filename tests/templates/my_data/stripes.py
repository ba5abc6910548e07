"""Stripes: images of four classes, told apart by direction; a data set that capsule_lab does not know."""

import torch
from torchvision.transforms import v2

from capsule_lab.data import AbstractDataModule, AbstractSource, Images
from capsule_lab.types import DataSpec


class Stripes(AbstractSource):
    def load(self, *, train):
        labels = torch.arange(400 if train else 100) % 4
        row, column = torch.meshgrid(torch.arange(20), torch.arange(20), indexing="ij")
        phases = torch.stack([row, column, row + column, row - column])[labels]
        images = (255 * (phases % 4 < 2)).to(torch.uint8)[:, None].repeat(1, 3, 1, 1)
        return Images(images, labels)

    def provenance(self):
        return {"name": "stripes", "version": 1}


class StripesDataModule(AbstractDataModule):
    spec = DataSpec(
        image_shape=(3, 16, 16), num_classes=4, classes=("down", "right", "falling", "rising")
    )
    train_transform = v2.Compose(
        [v2.RandomCrop(16), v2.ColorJitter(0.5), v2.ToDtype(torch.float32, scale=True)]
    )
    eval_transform = v2.Compose([v2.CenterCrop(16), v2.ToDtype(torch.float32, scale=True)])

    def __init__(self, **options):
        super().__init__(**options)
        self.real_source = Stripes()
