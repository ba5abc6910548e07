import torch

from capsule_lab.data.sources import tensor_hash
from capsule_lab.data.standins.coloured_digits import VERSION, ColouredDigits, coloured_digits
from capsule_lab.data.standins.digits import standin_digits

HASHES = {True: "03838331dc11a412", False: "5cf89e667b52b42b"}


def test_standin_has_the_form_of_the_real_sets_and_a_fixed_hash():
    for train, known in HASHES.items():
        images, labels, factors = made = coloured_digits.__wrapped__(train=train)
        assert tensor_hash(made) == known
        assert images.shape == (1438 if train else 359, 3, 32, 32)
        assert images.dtype == torch.uint8
        assert factors is None
        assert labels.equal(standin_digits(train=train).labels)
    assert ColouredDigits("SVHN").provenance() == {
        "name": "stand-in for SVHN: scikit-learn's 1797 handwritten digits, coloured, on clouds of colour, 32x32",
        "generator": "capsule_lab.data.standins.coloured_digits",
        "version": VERSION,
        "sha256": HASHES[True],
    }


def test_digit_contrasts_with_its_background_in_every_channel():
    """Pixels with most ink, 246 to 255, are lighter in all channels than the background, or darker in all."""
    for train in [True, False]:
        ink = (
            torch.nn.functional.pad(standin_digits(train=train).images, (2, 2, 2, 2))
            .expand(-1, 3, -1, -1)
            .flatten(2)
        )
        images = coloured_digits(train=train).images.flatten(2).int()
        digit = images.gather(2, ink.argmax(2, keepdim=True))[..., 0]
        lightest, darkest = (images.masked_fill(ink > 0, value) for value in (-1, 256))
        lighter, darker = digit - lightest.amax(2), darkest.amin(2) - digit
        assert torch.maximum(lighter.amin(1), darker.amin(1)).min() >= 45
        assert 0.4 < (lighter.amin(1) > 0).float().mean() < 0.6


def test_colours_are_independent_of_the_class():
    images, labels, _ = coloured_digits(train=True)
    means = torch.stack(
        [images[labels == label].float().mean(dim=(0, 2, 3)) for label in range(10)]
    )
    assert means.std(0).max() < 10, "of 255; a mean over 140 images is off by about 5"
