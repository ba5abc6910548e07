"""SVHN: images of the network and the experiment. ``test_sources`` covers its files."""

import pytest
import torch
from torchvision import datasets

from capsule_lab.commands import compose
from capsule_lab.commands.train import train
from capsule_lab.data import SVHNDataModule, svhn
from tests.helpers.commands import NO_PICTURES


def test_checksums_and_addresses_are_those_of_torchvision():
    assert [*svhn.SVHNFiles.checksums] == ["train_32x32.mat", "test_32x32.mat"]
    for part in ("train", "test"):
        url, name, md5 = datasets.SVHN.split_list[part]
        assert url == svhn.SERVER + name
        assert svhn.SVHNFiles.checksums[name] == md5


@pytest.mark.parametrize(
    ("name", "options", "is_moved"),
    [("train", {}, False), ("train", {"shift": 2}, True), ("val", {"shift": 2}, False)],
)
def test_training_images_are_shifted_only_if_asked(name, options, is_moved):
    data = SVHNDataModule(source="standin", **options)
    data.setup("fit")
    stored = data.dataset(name)[torch.arange(20), 0]
    seen = data.transform_batch(stored, name)
    assert seen.images.equal(stored.images / 255) is not is_moved


@pytest.mark.whole  # a whole fit
@pytest.mark.parametrize(
    ("decoder", "terms"),
    [("null", {"margin"}), ("[8]", {"margin", "reconstruction"})],
    ids=["without", "with"],
)
def test_experiment_trains_with_and_without_a_decoder(tmp_path, decoder, terms):
    small = [
        "model.channels=4",
        "model.primary.types=2",
        f"model.decoder={decoder}",
        "trainer.accelerator=cpu",
    ]
    config = compose("train", ["experiment=sabour2017/svhn", "debug=smoke", *small, *NO_PICTURES])
    result = train(config, tmp_path / "run")
    assert result["test"].keys() == {"error", "balanced_error", "auroc", "loss", *terms}
    assert result["test"]["loss"] == pytest.approx(sum(result["test"][term] for term in terms))
    assert result["provenance"]["source"] == "standin"
