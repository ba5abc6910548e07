import pytest
import torch

from capsule_lab.data.sources import tensor_hash
from capsule_lab.data.standins.coloured_digits import VERSION, ColouredDigits, coloured_digits
from capsule_lab.data.standins.digits import standin_digits

HASHES = {True: "03838331dc11a412", False: "5cf89e667b52b42b"}


@pytest.mark.parametrize(("train", "size"), [(True, 1438), (False, 359)])
def test_standin_has_the_form_of_the_real_sets_and_a_fixed_hash(train, size):
    made = coloured_digits.__wrapped__(train=train)
    images, labels, factors = made
    assert tensor_hash(made) == HASHES[train]
    assert images.shape == (size, 3, 32, 32)
    assert images.dtype == torch.uint8
    assert factors is None
    assert labels.equal(standin_digits(train=train).labels)


def test_provenance_names_the_set_and_the_hash_of_the_training_images():
    digits = "scikit-learn's 1797 handwritten digits, coloured, on clouds of colour, 32x32"
    assert ColouredDigits("SVHN").provenance() == {
        "name": f"stand-in for SVHN: {digits}",
        "generator": "capsule_lab.data.standins.coloured_digits",
        "version": VERSION,
        "sha256": HASHES[True],
    }


@pytest.mark.parametrize("train", [True, False])
def test_digit_contrasts_with_its_background_in_every_channel(train):
    """Pixels with most ink, 246 to 255, are lighter in all channels than the background, or darker in all."""
    digits = standin_digits(train=train).images
    padded = torch.nn.functional.pad(digits, (2, 2, 2, 2))
    ink = padded.expand(-1, 3, -1, -1).flatten(2)
    images = coloured_digits(train=train).images.flatten(2).int()
    most_ink = ink.argmax(2, keepdim=True)
    digit = images.gather(2, most_ink)[..., 0]
    lightest = images.masked_fill(ink > 0, -1).amax(2)
    darkest = images.masked_fill(ink > 0, 256).amin(2)
    lighter = (digit - lightest).amin(1)
    darker = (darkest - digit).amin(1)
    contrast = torch.maximum(lighter, darker)
    assert contrast.min() >= 45
    share_of_lighter = (lighter > 0).float().mean()
    assert 0.4 < share_of_lighter < 0.6


def test_colours_are_independent_of_the_class():
    images, labels, _ = coloured_digits(train=True)
    colours = images.float().mean((2, 3))
    of_classes = [colours[labels == label] for label in range(10)]
    means = torch.stack([each.mean(0) for each in of_classes])
    assert means.std(0).max() < 10, "of 255; a mean over 140 images is off by about 5"
