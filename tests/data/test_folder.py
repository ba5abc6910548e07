"""Pictures in a folder per class: layouts, the packed file, splits, augmentation, and what is wrong in one sentence."""

import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from capsule_lab import runs
from capsule_lab.data import PictureFolder, folder_packing
from capsule_lab.data.formats.pictures import open_picture, pictures_in
from capsule_lab.data.loader import Rows
from capsule_lab.errors import DataError
from capsule_lab.evaluate import evaluate
from capsule_lab.train import train
from capsule_lab.types import DataSpec
from tests.helpers.commands import NO_PICTURES, ROOT, TINY_CAPSNET, Cli, Tiny
from tests.helpers.data_modules import trainer
from tests.helpers.make_pictures import KINDS, make_pictures
from tests.helpers.training import interrupted_and_resumed, weights

PER_CLASS = 12


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_pictures(tmp_path_factory.mktemp("made") / "pictures", PER_CLASS, largest=60)


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the pictures, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "own"))


def module(path: Path, stage: str | None = "fit", **options: Any) -> PictureFolder:
    data = PictureFolder(path=str(path), **{"size": 16, "directory": "packs", **options})
    data.trainer = trainer()
    if stage:
        data.setup(stage)
    return data


def packs() -> list[Path]:
    return [path for path in Path("packs").iterdir() if path.is_dir()]


def files_of(data: PictureFolder, name: str) -> list[str]:
    return [data.real_source.index["files"][row][0] for row in data.sets[name].images.rows.tolist()]


def options_for(path: Path) -> list[str]:
    """Overrides of a tiny run on pictures."""
    data = [
        "data=folder",
        f"data.path={path}",
        "data.size=20",
        "data.source=auto",
        "data.train_images=null",
    ]
    return data + NO_PICTURES


def batches(data: PictureFolder) -> list[torch.Tensor]:
    return [data.on_after_batch_transfer(batch, 0).images for batch in data.train_dataloader()]


def test_pictures_of_every_kind_are_read_and_split(made: Path) -> None:
    data = module(made)
    data.setup("test")
    assert data.spec == DataSpec((3, 16, 16), 3, KINDS)
    sets = {name: files_of(data, name) for name in ("train", "val", "test")}
    expected = sorted(os.path.relpath(path, made) for path in pictures_in(made))
    assert sorted(file for files in sets.values() for file in files) == expected
    for name, files in sets.items():
        assert [KINDS[label] for label in data.sets[name].labels.tolist()] == [
            file.split(os.sep)[0] for file in files
        ]
        counts = data.sets[name].labels.bincount()
        assert counts.max() - counts.min() <= 1
    images = batches(data)[0]
    assert images.dtype == torch.float32
    assert 0 <= images.min() < images.max() <= 1
    assert data.provenance["pictures"] == 3 * PER_CLASS
    assert data.provenance["source"] == "real"


def test_a_picture_is_packed_as_the_network_receives_it_in_a_prediction(made: Path) -> None:
    data = module(made, augment=False)
    file = files_of(data, "train")[0]
    stored = data.dataset("train")[torch.tensor([0]), 0].images[0]
    assert data.from_picture(open_picture(made / file)).equal(stored / 255)
    assert data.input_form["kind"] == "photograph"


def test_splits_do_not_depend_on_the_seed_but_the_order_does(made: Path) -> None:
    one, other = (module(made, seed=seed) for seed in (0, 1))
    for data in (one, other):
        data.setup("test")
    for name in ("train", "val", "test"):
        assert sorted(files_of(one, name)) == sorted(files_of(other, name))
    assert not batches(one)[0].equal(batches(other)[0])


def test_parts_that_are_folders_are_used(made: Path, tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        shutil.copytree(made, tmp_path / "parts" / part)
    shutil.rmtree(tmp_path / "parts" / "test" / "disc")
    data = module(tmp_path / "parts")
    data.setup("test")
    for part in ("train", "val", "test"):
        assert {file.split(os.sep)[0] for file in files_of(data, part)} == {part}
    assert set(data.sets["test"].labels.tolist()) == {0, 2}


def test_files_of_the_operating_system_are_ignored_and_folders_are_searched(folder: Path) -> None:
    (folder / ".hidden").mkdir()
    (folder / "__MACOSX").mkdir()
    (folder / "disc" / "Thumbs.db").write_bytes(b"x")
    (folder / "disc" / "._000.png").write_bytes(b"x")
    (folder / "disc" / "more" / "deep").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(folder / "disc" / "more" / "deep" / "A.PNG")
    data = module(folder)
    assert data.spec.classes == KINDS
    assert data.provenance["pictures"] == 3 * PER_CLASS + 1


def test_grey_pictures_have_one_channel(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "grey" / name).mkdir(parents=True)
        for number in range(6):
            Image.new("L", (8, 8), number).save(tmp_path / "grey" / name / f"{number}.png")
    assert module(tmp_path / "grey").spec.image_shape == (1, 16, 16)
    assert module(tmp_path / "grey", channels=3).spec.image_shape == (3, 16, 16)


# --- the packed file


def test_pictures_are_read_once_and_again_after_one_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = module(folder).provenance
    with monkeypatch.context() as context:
        context.setattr(Image, "open", lambda *_: pytest.fail("a picture was read"))
        assert module(folder, channels=3).provenance == before
    Image.new("RGB", (33, 33)).save(folder / "disc" / "001.png")
    assert module(folder).provenance["sha256"] != before["sha256"]
    assert len(packs()) == 2


def test_images_stay_in_the_file(made: Path) -> None:
    images = module(made).sets["train"].images
    assert isinstance(images, Rows)
    assert images[torch.tensor([2, 0])].read().equal(images.read()[[2, 0]])
    assert images.to(torch.device("cpu")) is images
    assert images.to(torch.device("meta")).shape == images.shape


def test_two_jobs_pack_at_once(made: Path) -> None:
    hashes: list[str] = []
    jobs = [
        threading.Thread(target=lambda: hashes.append(module(made).provenance["sha256"]))
        for _ in range(2)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert len(hashes) == 2
    assert len(set(hashes)) == len(packs()) == 1


@pytest.mark.parametrize(
    ("file", "content", "text"),
    [
        ("pixels.u8", b"x", "pixels.u8 has 1 bytes instead of"),
        ("index.json", b"{", "JSONDecodeError"),
        ("index.json", b"{}", "KeyError: 'bad'"),
        ("index.json", b"null", "TypeError"),
        ("index.json", b"[" * 100_000, "RecursionError"),
        ("index.json", b"\xff\xfe", ""),
        ("index.json", b"9" * 5000, "ValueError"),
    ],
)
def test_a_damaged_pack_is_reported(made: Path, file: str, content: bytes, text: str) -> None:
    module(made)
    (packs()[0] / file).write_bytes(content)
    with pytest.raises(
        DataError,
        match=rf"folder-\w+ is damaged \({text}.*\): remove it, and the pictures are read",
    ):
        module(made)


INDICES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no files": lambda index: index.pop("files"),
    "no shape": lambda index: index.pop("shape"),
    "no hash": lambda index: index.pop("sha256"),
    "another hash": lambda index: index.update(sha256="0" * 64),
    "another label": lambda index: index["files"][0].__setitem__(1, 1),
    "a label of text": lambda index: index["files"][0].__setitem__(1, "disc"),
    "a huge label": lambda index: index["files"][0].__setitem__(1, 10**30),
    "another name": lambda index: index["files"][0].__setitem__(0, "../secret.png"),
    "another part": lambda index: index["files"][0].__setitem__(2, "test"),
    "another order": lambda index: index["files"].reverse(),
    "a picture twice": lambda index: index["files"].append(index["files"][0]),
    "files as mapping": lambda index: index.update(files={}),
    "a huge shape": lambda index: index.update(shape=[10**12, 1, 28, 28]),
    "a shape with the same product": lambda index: index["shape"].reverse(),
    "a shape of text": lambda index: index.update(shape="1234"),
    "no numbers in the shape": lambda index: index.update(shape=[None] * 4),
    "no list of bad pictures": lambda index: index.update(bad=None),
    "bad pictures that do not exist": lambda index: index["bad"].append(["x.png", "no picture"]),
    "bad pictures of another type": lambda index: index["bad"].append([["x"], 3]),
}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_of_other_pictures_is_reported(made: Path, name: str) -> None:
    module(made)
    file = packs()[0] / "index.json"
    index = json.loads(file.read_text())
    INDICES[name](index)
    file.write_text(json.dumps(index))
    with pytest.raises(
        DataError, match=r"is damaged \(.+\): remove it, and the pictures are read again$"
    ):
        module(made)


@pytest.mark.parametrize("largest", [0, 2**28], ids=["large", "small"])
def test_a_changed_pixel_is_reported(
    made: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(folder_packing, "_ALWAYS_HASHED", largest)
    module(made)
    with (packs()[0] / "pixels.u8").open("r+b") as file:
        value = file.read(1)[0]
        file.seek(0)
        file.write(bytes([value ^ 1]))
    with pytest.raises(
        DataError, match=r"is damaged \(pixels\.u8 has another SHA-256 than in index\.json\)"
    ):
        module(made)


def test_pixels_that_are_cut_off_while_they_are_used_are_reported(made: Path) -> None:
    """A file that is mapped into memory would end the process by SIGBUS."""
    batches = iter(module(made, batch_size=4).train_dataloader())
    next(batches)
    os.truncate(packs()[0] / "pixels.u8", 10)
    with pytest.raises(DataError, match=r"pixels\.u8 became shorter while it was used"):
        next(batches)


@pytest.mark.parametrize(
    "kind",
    [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)],
    ids=["FIFO", "folder", "loop"],
)
def test_pixels_in_another_kind_of_file_are_reported(made: Path, kind: Any) -> None:
    module(made)
    file = packs()[0] / "pixels.u8"
    file.unlink()
    kind(file)
    with pytest.raises(
        DataError, match=r"is damaged \((OSError|FileNotFoundError): .+\): remove it"
    ):
        module(made)


def test_a_fifo_in_place_of_a_picture_is_named(folder: Path) -> None:
    os.mkfifo(folder / "disc" / "pipe.png")
    with pytest.raises(
        DataError, match=r"disc/pipe\.png \(not a regular file\); expected pictures: remove them"
    ):
        module(folder)
    assert module(folder, bad="skip").provenance["left_out"] == 1


def test_links_to_pictures_and_classes_are_followed(made: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    (linked / "disc").mkdir(parents=True)
    for name in (path.name for path in made.iterdir() if path.name != "disc"):
        (linked / name).symlink_to(made / name)
    for picture in (made / "disc").iterdir():
        (linked / "disc" / picture.name).symlink_to(picture)
    assert module(linked).provenance["sha256"] == module(made).provenance["sha256"]


def test_a_full_disk_is_reported(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(
        DataError, match=r"cannot be written to .*\(0 MB are needed, 0 MB are free\); expected"
    ):
        module(made)
    assert packs() == []


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="memory of a process is read from /proc"
)
def test_twenty_thousand_pictures_stay_out_of_memory(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = module(made, size=128, channels=3)
    index, folder = data.real_source.index, data.real_source.folder
    files = [[f"{number}", number % 3, ""] for number in range(20_000)]
    with (folder / "pixels.u8").open("r+b") as file:
        file.truncate(len(files) * 3 * 128 * 128)
    (folder / "index.json").write_text(
        json.dumps(index | {"files": files, "shape": [len(files), 3, 128, 128]})
    )
    for check in ("_problem_of_index", "_problem_of_pixels"):
        monkeypatch.setattr(folder_packing.PackedFolder, check, lambda *_: "")

    def anonymous() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    data = module(made, size=128, channels=3, batch_size=64, eval_batch_size=64)
    loader = data.train_dataloader()
    next(iter(loader))
    before = anonymous()
    for _ in range(2):
        for _batch in loader:
            pass
    assert anonymous() - before < 50_000  # kB


# --- augmentation


def test_training_pictures_are_augmented_by_their_keys_alone(made: Path) -> None:
    options = {"augment_with": [{"RandomRotation": {"degrees": 20}}], "mirror": True}
    whole, halves = (
        torch.cat(batches(module(made, batch_size=size, **options))) for size in (16, 8)
    )
    assert whole[:16].equal(halves[:16])
    still = torch.cat(batches(module(made, batch_size=16, augment=False)))
    shifted = torch.cat(batches(module(made, batch_size=16)))
    mirrored = torch.cat(batches(module(made, batch_size=16, shift=0, mirror=True)))
    assert not shifted.equal(still)
    assert not whole.equal(shifted)
    same, flipped = (
        [a.equal(b) for a, b in zip(mirrored, other, strict=True)]
        for other in (still, still.flip(3))
    )
    assert all(a or b for a, b in zip(same, flipped, strict=True))
    assert any(same)
    assert any(flipped)


def test_few_pictures_are_mentioned(made: Path, caplog: pytest.LogCaptureFixture) -> None:
    module(made)
    assert "24 training pictures are few" in caplog.text


def test_a_run_that_stopped_in_an_epoch_continues_bit_for_bit(
    made: Path, tiny: Tiny, tmp_path: Path
) -> None:
    more = "data.augment_with=[{RandomRotation: {degrees: 10}}]"
    config = tiny(*options_for(made), "data.batch_size=5", more, "data.mirror=true")
    train(config, tmp_path / "whole")
    interrupted_and_resumed(config, tmp_path / "parts", 3, 7)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert all(whole[name].equal(parts[name]) for name in whole)


# --- a checkpoint


def test_a_checkpoint_needs_a_folder_for_tests_not_for_predictions(
    folder: Path, tiny: Tiny, tmp_path: Path
) -> None:
    train(tiny(*options_for(folder), "data.batch_size=8", "trainer.max_epochs=1"), tmp_path / "run")
    picture = Image.open(next((folder / "disc").iterdir()))
    picture.load()
    folder.rename(tmp_path / "elsewhere")
    run = runs.open(tmp_path / "run")
    assert run.spec.classes == KINDS
    data = PictureFolder(
        **{name: value for name, value in run.data_config({}).items() if name != "_target_"}
    )
    data.use_spec(run.spec)
    assert data.spec == run.spec
    assert data.from_picture(picture).shape == (3, 20, 20)
    assert runs.checkpoints.read(run.checkpoint)["capsule_lab"]["input_form"] == data.input_form
    with pytest.raises(
        DataError, match=r"own cannot be read \(No such file or directory\); expected a folder"
    ):
        evaluate(run)
    shutil.rmtree(tmp_path / "elsewhere" / "cross")
    result = evaluate(runs.open(tmp_path / "run"), data={"path": str(tmp_path / "elsewhere")})
    assert result["provenance"]["name"] == "pictures of elsewhere"
    assert 0 <= result["test"]["error"] <= 100


@pytest.mark.whole
def test_the_commands_of_the_guide(cli: Cli) -> None:
    guide = (ROOT / "docs" / "guides" / "own_pictures.md").read_text()
    _, *commands = re.findall(r"^python .*", guide, re.MULTILINE)
    make_pictures(Path("pictures"))
    for command in commands:
        _, _, name, *overrides = command.replace(
            "max_steps=300", "max_steps=3 trainer.accelerator=cpu"
        ).split()
        name = name.removeprefix("capsule_lab.")
        ended = cli(name, *overrides)
        assert ended.status == 0, ended.err
        assert name != "predict" or any(kind in ended.out for kind in KINDS)


# --- what is wrong


def add(path: Path, content: bytes | Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content) if isinstance(content, bytes) else content.save(path)


def loop(disc: Path) -> None:
    (disc / "loop.png").symlink_to("loop.png")
    (disc / "around").symlink_to(disc, target_is_directory=True)


UNREADABLE = {
    "text": (lambda disc: add(disc / "bad.png", b"text"), r"bad.png \(it is not a picture\)"),
    "one pixel": (
        lambda disc: add(disc / "dot.png", Image.new("L", (1, 1))),
        r"dot.png \(it has a single pixel\)",
    ),
    "wide": (
        lambda disc: add(disc / "a.png", Image.new("1", (100_000, 2_000))),
        r"a.png \(.* Pillow's limit against",
    ),
    "link loop": (loop, r"loop.png \(Too many levels of symbolic links\)"),
    "broken link": (
        lambda disc: (disc / "no.png").symlink_to("x"),
        r"no.png \(No such file or directory\)",
    ),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_picture_that_cannot_be_read_fails_or_is_left_out(folder: Path, kind: str) -> None:
    damage, reason = UNREADABLE[kind]
    damage(folder / "disc")
    expected = (
        f"1 of 37 pictures of {folder} cannot be read: disc/{reason}.*; expected .*data.bad=skip"
    )
    with pytest.raises(DataError, match=expected) as failed:
        module(folder)
    assert "\n" not in str(failed.value)
    assert packs() == []
    assert module(folder, bad="skip").provenance["left_out"] == 1


def test_five_of_many_unreadable_pictures_are_named(folder: Path) -> None:
    for number in range(7):
        add(folder / "disc" / f"bad{number}.png", b"text")
    with pytest.raises(
        DataError, match=r"7 of 43 pictures .*bad4.png \(it is not a picture\) and 2 more; expected"
    ):
        module(folder)


def only_one_class(folder: Path) -> None:
    for name in ("disc", "cross"):
        shutil.rmtree(folder / name)


def no_class(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def with_parts(folder: Path, other: str) -> None:
    shutil.copytree(folder, folder.with_name("copy"))
    no_class(folder)
    folder.with_name("copy").rename(folder / "train")
    shutil.copytree(folder / "train" / "disc", folder / other)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (only_one_class, "own has one class, square; expected two classes or more"),
        (no_class, "own has no folders; expected two classes or more"),
        (lambda folder: (folder / "empty").mkdir(), "own/empty has no pictures; expected files that end in .bmp, "),
        (lambda folder: with_parts(folder, "test/star"), "test/star is not a class of train; expected folders"),
        (lambda folder: with_parts(folder, "valid"), "own has train and valid; expected only train, val and test"),
        (lambda folder: shutil.rmtree(folder), r"own cannot be read \(No such file or directory\); expected a folder"),
    ],
)  # fmt: skip
def test_folders_that_are_no_classes_are_reported(folder: Path, damage: Any, message: str) -> None:
    damage(folder)
    with pytest.raises(DataError, match=message):
        _ = module(folder, stage=None).spec


def test_a_folder_without_classes_cannot_test_a_trained_network(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    data = module(tmp_path / "own", stage=None)
    data.use_spec(DataSpec((3, 16, 16), 3, KINDS))
    with pytest.raises(DataError, match="own has no folders; expected two classes or more"):
        data.setup("test")


def test_a_folder_without_permission_is_reported(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if str(path).endswith("disc"):  # as root, no folder is forbidden
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(
        DataError,
        match=r"own/disc cannot be read \(Permission denied\); expected a readable folder",
    ):
        _ = module(folder, stage=None).spec


def test_a_class_without_a_readable_picture_is_reported(folder: Path) -> None:
    for path in (folder / "disc").iterdir():
        path.write_bytes(b"text")
    with pytest.raises(
        DataError, match=r"no picture of .*own/disc can be read; expected one or more"
    ):
        module(folder, bad="skip")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 2}, "data.channels is 2; expected 'auto', 1 or 3"),
        ({"background": "blank"}, "data.background is 'blank'; expected a colour, such as white"),
        ({"shift": 16}, "data.shift is 16; expected fewer than the 16 pixels"),
        ({"test_share": "1/0"}, "data.test_share is '1/0'; expected a number or a fraction"),
        ({"test_share": 0.001}, r"data.test_share is 1/1000, 0 of 36 .*: set data.test_share=1/12$"),
        ({"augment_with": ["os.system"]}, "data.augment_with contains 'os.system'; expected classes of torchvision"),
        ({"augment_with": [{"functional": {}}]}, "data.augment_with contains {'functional': {}}; expected classes"),
        ({"augment_with": [{"RandomRotation": {"angle": 1}}]}, "RandomRotation refuses its arguments: .*angle"),
        ({"augment_with": [{"RandomCrop": {"size": 3}}]}, "gives torch.uint8 of shape .3, 3, 3.; expected"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(made: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module(made, **options)


@pytest.mark.parametrize(
    ("fit", "sides", "size", "expected"),
    [
        (
            "crop",
            (733, 3),
            24,
            "cuts off most of most pictures, such as 100 % of one of 733x3; set data.fit=stretch, ",
        ),
        (
            "crop",
            (20, 90),
            24,
            "such as 78 % of one of 20x90; set data.fit=pad, which keeps everything, or stretch",
        ),
        ("crop", (160, 90), 24, None),
        ("pad", (20, 90), 24, None),
        (
            "pad",
            (733, 3),
            24,
            "fewer than 4 of 24 pixels in one direction, such as one of 733x3; set data.fit=stretch",
        ),
        ("stretch", (733, 3), 24, None),
    ],
)
def test_a_square_that_shows_little_of_most_pictures_is_a_warning(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    fit: str,
    sides: tuple[int, int],
    size: int,
    expected: str | None,
) -> None:
    for label in range(2):
        add(tmp_path / "mixed" / f"{label}" / "square.png", Image.effect_noise((30, 30), 50))
        for number in range(5):
            add(tmp_path / "mixed" / f"{label}" / f"{number}.png", Image.effect_noise(sides, 50))
    module(tmp_path / "mixed", size=size, fit=fit)
    found = [record.getMessage() for record in caplog.records if "data.fit" in record.getMessage()]
    assert len(found) == (expected is not None)
    assert expected is None or expected in found[0]
    caplog.clear()
    for option in re.findall(r"set data\.fit=(\w+)|or (stretch)", " ".join(found)):
        module(tmp_path / "mixed", size=size, fit="".join(option))
    assert "data.fit" not in caplog.text, "the advice is accepted without another warning"


def test_pictures_that_become_equal_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for label in range(2):
        strip = Image.new("L", (300, 3))
        strip.paste(255, (50 * label, 0, 50 * label + 20, 3))
        for number in range(6):
            add(tmp_path / "strips" / f"{label}" / f"{number}.png", strip)
    module(tmp_path / "strips", fit="stretch")
    assert "blank" not in caplog.text
    module(tmp_path / "strips", fit="crop")
    assert (
        "the training set of PictureFolder has 10 blank images among 10 that were looked at"
        in caplog.text
    )


@pytest.mark.parametrize("numbers", [(2, 2), (3, 2), (2, 2, 2), (3, 3, 4), (9, 2), (2, 40)])
@pytest.mark.parametrize(
    "options", [{}, {"test_share": 0.9}, {"test_share": "1/100", "validation_share": 0.99}]
)
def test_advice_about_shares_is_accepted_until_the_folder_can_be_used(
    tmp_path: Path, numbers: tuple[int, ...], options: dict[str, Any]
) -> None:
    for label, number in enumerate(numbers):
        for picture in range(number):
            add(
                tmp_path / "few" / f"class{label}" / f"{picture}.png",
                Image.new("L", (8, 8), picture),
            )
    options = followed(
        followed(followed(options, tmp_path / "few"), tmp_path / "few"), tmp_path / "few"
    )
    module(tmp_path / "few", **options).setup("test")


def followed(options: dict[str, Any], path: Path) -> dict[str, Any]:
    """The options, changed as a message recommends if they are refused."""
    try:
        module(path, **options)
    except ValueError as error:
        return options | dict(re.findall(r"set data\.(\w+)=([\w/]+)", str(error)))
    return options


def test_a_class_of_one_picture_is_reported(folder: Path) -> None:
    for path in sorted((folder / "disc").iterdir())[1:]:
        path.unlink()
    with pytest.raises(
        ValueError,
        match=r"test_share is 1/5, 5 of 25 images; .*: there is a single image of class 1",
    ):
        module(folder)


def test_a_missing_path_is_one_line(cli: Cli) -> None:
    ended = cli("train", "data=folder", *TINY_CAPSNET)
    assert ended.status != 0
    assert (
        "data.path is missing; expected data.path=<a folder with a folder of pictures per class>"
        in ended.err
    )
    assert "Traceback" not in ended.err
