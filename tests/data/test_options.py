"""Invalid options of data sets are refused in one sentence; ``REFUSED`` has the options of each data set."""

from typing import Any

import pytest

from capsule_lab import data

REFUSED: dict[type[data.AbstractDataModule], list[tuple[dict[str, Any], str]]] = {
    data.AffNISTDataModule: [
        (
            {"pad": 4, "shift": 4},
            r"data\.pad is 4; expected 6, since affNIST's images have 40x40 pixels$",
        ),
        ({"shift": 7}, r"data\.shift is 7 with data\.pad 6, "),
        (
            {"affine_validation": True, "validation": "none"},
            r"data\.affine_validation is true with data\.validation=none, .* expected data\.validation=first or ",
        ),
        (
            {"affine_within": True, "validation": "none"},
            r"data\.affine_within is true with data\.validation=none, .* expected data\.validation=first or ",
        ),
        ({"digits": "genuine"}, r"data\.digits is 'genuine'; expected 'auto' or 'real'"),
    ],
    data.CIFAR10DataModule: [
        ({"crop": 0}, r"data\.crop is 0; expected 1 to 32"),
        ({"crop": 33}, r"data\.crop is 33; expected 1 to 32"),
        ({"brightness": float("nan")}, r"data\.brightness is nan; expected 0"),
        ({"contrast": 1.5}, r"data\.contrast is 1.5; expected 0"),
    ],
    data.ExpandedMNISTDataModule: [
        ({"pad": -1, "shift": 0}, r"data\.pad is -1; expected 0 or more"),
        ({"shift": 7}, r"data\.shift is 7 with data\.pad 6, which would push digits over the edge"),
        ({"pad": 4}, r"data\.shift is 6 with data\.pad 4, which would push digits over the edge"),
    ],
    data.MNISTDataModule: [
        ({"source": "reel"}, r"data\.source is 'reel'; expected 'auto', 'real' or 'standin'"),
        ({"on_device": "gpu"}, r"data\.on_device is 'gpu'; expected 'auto', True or False"),
        (
            {"validation": "last"},
            r"data\.validation is 'last'; expected 'first', 'stratified' or 'none'",
        ),
        ({"batch_size": 0}, "batch sizes are 0 and 500; expected 1 or more"),
        ({"eval_batch_size": -1}, "batch sizes are 128 and -1; expected 1 or more"),
        ({"eval_images": 0}, r"data\.eval_images is 0; expected 1 or more"),
        ({"sampling": "all"}, r"data\.sampling is 'all'; expected 'balanced' or"),
        ({"mixup": 0.0}, r"data\.mixup is 0\.0; expected more than 0"),
        ({"shift": -1}, r"data\.shift is -1; expected 0"),
        ({"shift": 28}, r"data\.shift is 28; expected fewer than the 28 pixels"),
        (
            {"validation_share": "a sixth"},
            r"data\.validation_share is 'a sixth'; expected a number",
        ),
        ({"validation_share": "1/0"}, r"data\.validation_share is '1/0'"),
        ({"validation_share": "nan"}, r"data\.validation_share is 'nan'"),
        (
            {"validation_share": 0.0},
            r"data\.validation_share is 0, 0 of 1438 images; expected .*validation=none",
        ),
        (
            {"validation": "stratified", "validation_share": "5/1438"},
            r"data\.validation_share .* every class",
        ),
        (
            {"validation": "stratified", "validation_share": "1435/1438"},
            r"data\.validation_share .* every class",
        ),
        ({"train_images": 0}, r"data\.train_images is 0; expected 1 to 1198"),
        ({"train_images": 1199}, r"data\.train_images is 1199; expected 1 to 1198"),
    ],
    data.MNISTPairsDataModule: [
        ({"change": "flip"}, "data.change is 'flip'; expected 'shift' or 'affine'"),
        ({"moved": "none"}, "data.moved is 'none'; expected 'both' or 'target'"),
        ({"shift": 28}, "data.shift is 28; expected fewer than the 28 pixels"),
        ({"rotation": -1.0}, "data.rotation is -1.0; expected 0 or more"),
        ({"scale": 0.5}, "data.scale is 0.5; expected 1 or more"),
        ({"shear": -0.1}, "data.shear is -0.1; expected 0 or more"),
    ],
    data.MultiMNISTDataModule: [
        ({"pad": -1}, "data.pad is -1; expected 0 or more"),
        ({"shift": -1}, "data.shift is -1; expected 0"),
        ({"blend": "add"}, "data.blend is 'add'; expected 'sum' or 'max'"),
        ({"placing": "move"}, "data.placing is 'move'; expected 'shift' or 'affine'"),
        (
            {"same_class": "always"},
            "data.same_class is 'always'; expected 'never', 'also' or 'only'",
        ),
        ({"test_pairs": 0}, "data.test_pairs is 0; expected 1 or more"),
        ({"test_pairs": 359_001}, r"data\.test_pairs is 359001; expected 1 to 359000"),
    ],
    data.SmallNORBDataModule: [
        ({"resize": "bilinear"}, r"data\.resize is 'bilinear'; expected 'subsample' or 'area'"),
        ({"preprocessing": "ibm"}, r"data\.preprocessing is 'ibm'; expected 'official' or 'paper'"),
        ({"stereo": "left"}, r"data\.stereo is 'left'; expected 'channels' or 'separate'"),
        (
            {"split": "lighting"},
            r"data\.split is 'lighting'; expected 'full', 'azimuth', 'elevation', 'azimuth_all' or",
        ),
        ({"test_crops": 5}, r"data\.test_crops is 5; expected 1 or 13"),
        ({"standin": "tiny"}, r"data\.standin is 'tiny'; expected 'full' or 'small'"),
        (
            {"validation": "first"},
            r"data\.validation is 'first'; expected 'instance', 'instance_all_viewpoints' or 'none'",
        ),
        (
            {"validation_share": 0.1},
            r"data\.validation_share is 0.1; smallNORB holds out whole toys",
        ),
        ({"crop": 49}, r"data\.crop is 49; expected 1 to 48"),
        ({"brightness": -1.0}, r"data\.brightness is -1.0; expected 0"),
        ({"contrast": 1.5}, r"data\.contrast is 1.5; expected 0"),
    ],
    data.SmallNORBPairsDataModule: [
        (
            {"categories": ["bus"]},
            r"data.categories is \['bus'\]; expected names from animal, human",
        ),
        ({"categories": []}, r"data.categories is \[\]; expected names from animal"),
        (
            {"train_images": 10},
            "data.train_images is 10, but images would lose their neighbouring views",
        ),
        (
            {"stereo": "separate"},
            "data.stereo is separate, but pairs have both eyes as channels; expected channels",
        ),
        ({"test_crops": 13}, "data.test_crops is 13, but pairs have one crop; expected 1"),
        ({"contrast": 0.5}, "data.contrast is 0.5, but pairs are not augmented; expected null"),
        ({"eval_images": 0}, "data.eval_images is 0; expected 1 or more"),
    ],
    data.SVHNDataModule: [
        ({"shift": shift}, rf"data\.shift is {shift}; expected ") for shift in (-1, 32)
    ],
}


def set_up(kind: type[data.AbstractDataModule], options: dict[str, Any]) -> None:
    kind(**{"source": "standin", **options}).setup(
        "test" if kind is data.MultiMNISTDataModule else "fit"
    )


@pytest.mark.usefixtures("unchecked_types")
@pytest.mark.parametrize("kind", REFUSED)
def test_invalid_options_are_refused(kind: type[data.AbstractDataModule]) -> None:
    for options, message in REFUSED[kind]:
        with pytest.raises(ValueError, match=f"^{message}") as caught:
            set_up(kind, options)
        assert "\n" not in str(caught.value)
