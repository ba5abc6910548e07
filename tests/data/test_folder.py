"""Pictures in a folder per class: layouts, the packed file, splits, augmentation, and what is wrong in one sentence."""

import json
import os
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from capsule_lab import runs
from capsule_lab.commands.evaluate import evaluate
from capsule_lab.commands.train import train
from capsule_lab.data import PictureFolder, folder_packing
from capsule_lab.data.formats.pictures import open_picture, pictures_in
from capsule_lab.data.loader import Rows
from capsule_lab.errors import DataError
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
    kept = data.real_source.kept
    return [kept[row].file for row in data.sets[name].images.rows.tolist()]


def options_for(path: Path) -> list[str]:
    """Overrides of a tiny run on pictures."""
    return [
        "data=folder",
        f"data.path={path}",
        "data.size=20",
        "data.source=auto",
        "data.train_images=null",
        *NO_PICTURES,
    ]


def top_folders(files: list[str]) -> list[str]:
    return [Path(file).parts[0] for file in files]


def batches(data: PictureFolder) -> list[torch.Tensor]:
    """What the network receives in an epoch of training."""
    received = []
    for batch in data.train_dataloader():
        received.append(data.on_after_batch_transfer(batch, 0).images)
    return received


def augmented(path: Path, **options: Any) -> torch.Tensor:
    return torch.cat(batches(module(path, **options)))


PARTS = ("train", "val", "test")


def add(path: Path, content: bytes | Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content.save(path)


def test_pictures_of_every_kind_are_read_and_split(made: Path) -> None:
    data = module(made)
    data.setup("test")
    assert data.spec == DataSpec((3, 16, 16), 3, KINDS)
    seen = []
    for name in PARTS:
        files = files_of(data, name)
        labels = data.sets[name].labels
        classes = [KINDS[label] for label in labels.tolist()]
        assert classes == top_folders(files)
        counts = labels.bincount()
        assert counts.max() - counts.min() <= 1
        seen += files
    expected = [os.path.relpath(path, made) for path in pictures_in(made)]
    assert sorted(seen) == expected
    images, *_ = batches(data)
    assert images.dtype == torch.float32
    assert 0 <= images.min() < images.max() <= 1
    assert data.provenance["pictures"] == 3 * PER_CLASS
    assert data.provenance["source"] == "real"


def test_a_picture_is_packed_as_the_network_receives_it_in_a_prediction(made: Path) -> None:
    data = module(made, augment=False)
    file, *_ = files_of(data, "train")
    (stored,) = data.dataset("train")[torch.tensor([0]), 0].images
    picture = open_picture(made / file)
    assert data.from_picture(picture).equal(stored / 255)
    assert data.input_form["kind"] == "photograph"


def test_splits_do_not_depend_on_the_seed_but_the_order_does(made: Path) -> None:
    one = module(made, seed=0)
    other = module(made, seed=1)
    one.setup("test")
    other.setup("test")
    for name in PARTS:
        assert sorted(files_of(one, name)) == sorted(files_of(other, name))
    first_batch, *_ = batches(one)
    other_first_batch, *_ = batches(other)
    assert not first_batch.equal(other_first_batch)


def test_parts_that_are_folders_are_used(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    for part in PARTS:
        shutil.copytree(made, folder / part)
    shutil.rmtree(folder / "test" / "disc")
    data = module(folder)
    data.setup("test")
    for part in PARTS:
        assert {*top_folders(files_of(data, part))} == {part}
    classes = data.sets["test"].labels.unique()
    assert classes.tolist() == [0, 2]


def test_files_of_the_operating_system_are_ignored_and_folders_are_searched(folder: Path) -> None:
    disc = folder / "disc"
    (folder / ".hidden").mkdir()
    (folder / "__MACOSX").mkdir()
    (disc / "Thumbs.db").write_bytes(b"x")
    (disc / "._000.png").write_bytes(b"x")
    add(disc / "more" / "deep" / "A.PNG", Image.new("RGB", (9, 9)))
    data = module(folder)
    assert data.spec.classes == KINDS
    assert data.provenance["pictures"] == 3 * PER_CLASS + 1


def test_grey_pictures_have_one_channel(tmp_path: Path) -> None:
    folder = tmp_path / "grey"
    for name in ("a", "b"):
        for number in range(6):
            picture = Image.new("L", (8, 8), number)
            add(folder / name / f"{number}.png", picture)
    assert module(folder).spec.image_shape == (1, 16, 16)
    assert module(folder, channels=3).spec.image_shape == (3, 16, 16)


def test_pictures_are_read_once_and_again_after_one_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = module(folder).provenance
    with monkeypatch.context() as context:
        context.setattr(Image, "open", lambda *_: pytest.fail("a picture was read"))
        again = module(folder, channels=3)
        assert again.provenance == before
    add(folder / "disc" / "001.png", Image.new("RGB", (33, 33)))
    after = module(folder).provenance
    assert after["sha256"] != before["sha256"]
    assert len(packs()) == 2


def test_images_stay_in_the_file(made: Path) -> None:
    images = module(made).sets["train"].images
    assert isinstance(images, Rows)
    two = torch.tensor([2, 0])
    expected = images.read()[two]
    assert images[two].read().equal(expected)
    assert images.to(torch.device("cpu")) is images
    assert images.to(torch.device("meta")).shape == images.shape


def test_two_jobs_pack_at_once(made: Path) -> None:
    hashes: list[str] = []

    def job() -> None:
        data = module(made)
        hashes.append(data.provenance["sha256"])

    one = threading.Thread(target=job)
    other = threading.Thread(target=job)
    one.start()
    other.start()
    one.join()
    other.join()
    assert len(hashes) == 2
    assert hashes[0] == hashes[1]
    assert len(packs()) == 1


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
    (pack,) = packs()
    (pack / file).write_bytes(content)
    message = rf"folder-\w+ is damaged \({text}.*\): remove it, and the pictures are read"
    with pytest.raises(DataError, match=message):
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
    (pack,) = packs()
    file = pack / "index.json"
    index = json.loads(file.read_text())
    INDICES[name](index)
    file.write_text(json.dumps(index))
    message = r"is damaged \(.+\): remove it, and the pictures are read again$"
    with pytest.raises(DataError, match=message):
        module(made)


@pytest.mark.parametrize("largest", [0, 2**28], ids=["large", "small"])
def test_a_changed_pixel_is_reported(
    made: Path, monkeypatch: pytest.MonkeyPatch, largest: int
) -> None:
    monkeypatch.setattr(folder_packing, "_ALWAYS_HASHED", largest)
    module(made)
    (pack,) = packs()
    with (pack / "pixels.u8").open("r+b") as file:
        (value,) = file.read(1)
        file.seek(0)
        file.write(bytes([value ^ 1]))
    message = r"is damaged \(pixels\.u8 has another SHA-256 than in index\.json\)"
    with pytest.raises(DataError, match=message):
        module(made)


def test_pixels_that_are_cut_off_while_they_are_used_are_reported(made: Path) -> None:
    """A file that is mapped into memory would end the process by SIGBUS."""
    batches = iter(module(made, batch_size=4).train_dataloader())
    next(batches)
    (pack,) = packs()
    os.truncate(pack / "pixels.u8", 10)
    with pytest.raises(DataError, match=r"pixels\.u8 became shorter while it was used"):
        next(batches)


def make_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, make_link_to_itself], ids=["FIFO", "folder", "loop"]
)
def test_pixels_in_another_kind_of_file_are_reported(made: Path, make: Any) -> None:
    module(made)
    (pack,) = packs()
    (pack / "pixels.u8").unlink()
    make(pack / "pixels.u8")
    message = r"is damaged \((OSError|FileNotFoundError): .+\): remove it"
    with pytest.raises(DataError, match=message):
        module(made)


def test_a_fifo_in_place_of_a_picture_is_named(folder: Path) -> None:
    os.mkfifo(folder / "disc" / "pipe.png")
    message = r"disc/pipe\.png \(not a regular file\); expected pictures: remove them"
    with pytest.raises(DataError, match=message):
        module(folder)
    data = module(folder, bad="skip")
    assert data.provenance["left_out"] == 1


def test_links_to_pictures_and_classes_are_followed(made: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    (linked / "disc").mkdir(parents=True)
    for name in ("cross", "square"):
        (linked / name).symlink_to(made / name)
    for picture in (made / "disc").iterdir():
        link = linked / "disc" / picture.name
        link.symlink_to(picture)
    found = module(linked).provenance
    expected = module(made).provenance
    assert found["sha256"] == expected["sha256"]


def test_a_full_disk_is_reported(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = shutil._ntuple_diskusage(10, 10, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    message = r"cannot be written to .*\(0 MB are needed, 0 MB are free\); expected"
    with pytest.raises(DataError, match=message):
        module(made)
    assert packs() == []


STATUS = Path("/proc/self/status")


def anonymous_memory() -> int:
    """Memory of this process without mapped files, in kB."""
    (kilobytes,) = re.findall(r"^RssAnon:\s*(\d+) kB", STATUS.read_text(), re.MULTILINE)
    return int(kilobytes)


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="memory of a process is read from /proc")
def test_twenty_thousand_pictures_stay_out_of_memory(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 20_000
    source = module(made, size=128, channels=3).real_source
    os.truncate(source.folder / "pixels.u8", number * 3 * 128 * 128)
    index = source.index | {
        "files": [[f"{row}", row % 3, ""] for row in range(number)],
        "shape": [number, 3, 128, 128],
    }
    (source.folder / "index.json").write_text(json.dumps(index))
    for check in ("_problem_of_index", "_problem_of_pixels"):
        monkeypatch.setattr(folder_packing.PackedFolder, check, lambda *_: "")
    data = module(made, size=128, channels=3, batch_size=64, eval_batch_size=64)
    loader = data.train_dataloader()
    next(iter(loader))
    before = anonymous_memory()
    for _ in range(2):
        for _batch in loader:
            pass
    assert anonymous_memory() - before < 50_000


def test_training_pictures_are_augmented_by_their_keys_alone(made: Path) -> None:
    options = {"augment_with": [{"RandomRotation": {"degrees": 20}}], "mirror": True}
    whole = augmented(made, batch_size=16, **options)
    halves = augmented(made, batch_size=8, **options)
    assert whole[:16].equal(halves[:16])
    still = augmented(made, batch_size=16, augment=False)
    shifted = augmented(made, batch_size=16)
    assert not shifted.equal(still)
    assert not whole.equal(shifted)


def test_half_of_the_training_pictures_are_mirrored(made: Path) -> None:
    still = augmented(made, batch_size=16, augment=False)
    mirrored = augmented(made, batch_size=16, shift=0, mirror=True)
    is_same = (mirrored == still).flatten(1).all(1)
    is_flipped = (mirrored == still.flip(3)).flatten(1).all(1)
    assert (is_same | is_flipped).all()
    assert is_same.any()
    assert is_flipped.any()


@pytest.mark.whole
def test_few_pictures_are_mentioned_once_and_in_training_only(
    made: Path, tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny(*options_for(made), "trainer.max_epochs=1", "train.test=none")
    train(config, tmp_path / "run")
    assert caplog.text.count("24 training pictures are few") == 1
    caplog.clear()
    [*runs.open(tmp_path / "run").batches("train")]
    assert "pictures are few" not in caplog.text


@pytest.mark.whole
def test_a_run_that_stopped_in_an_epoch_continues_bit_for_bit(
    made: Path, tiny: Tiny, tmp_path: Path
) -> None:
    config = tiny(
        *options_for(made),
        "data.batch_size=5",
        "data.augment_with=[{RandomRotation: {degrees: 10}}]",
        "data.mirror=true",
        "train.test=none",
    )
    whole_run = train(config, tmp_path / "whole")
    in_the_second_epoch = whole_run["steps"] // 2 + 2
    interrupted_and_resumed(config, tmp_path / "parts", in_the_second_epoch)
    whole = weights(tmp_path / "whole")
    parts = weights(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for name, expected in whole.items():
        assert parts[name].equal(expected), name


def test_a_checkpoint_needs_a_folder_for_tests_not_for_predictions(
    folder: Path, tiny: Tiny, tmp_path: Path
) -> None:
    directory = tmp_path / "run"
    oblong = [*options_for(folder), "data.size=[20,28]"]
    config = tiny(*oblong, "data.batch_size=8", "trainer.max_epochs=1")
    train(config, directory)
    picture = Image.open(next((folder / "disc").iterdir()))
    picture.load()
    elsewhere = folder.rename(tmp_path / "elsewhere")

    run = runs.open(directory)
    assert run.spec.classes == KINDS
    options = dict(run.data_config({}))
    del options["_target_"]
    data = PictureFolder(**options)
    data.use_spec(run.spec)
    assert data.spec == run.spec
    assert data.from_picture(picture).shape == (3, 20, 28)
    record = runs.checkpoints.read(run.checkpoint)["capsule_lab"]
    assert record["input_form"] == data.input_form
    message = r"own cannot be read \(No such file or directory\); expected a folder"
    with pytest.raises(DataError, match=message):
        evaluate(run)

    shutil.rmtree(elsewhere / "cross")
    result = evaluate(runs.open(directory), data={"path": str(elsewhere)})
    assert result["provenance"]["name"] == "pictures of elsewhere"
    assert 0 <= result["test"]["error"] <= 100


def run_commands(cli: Cli, section: str, commands: Iterable[str]) -> list[str]:
    """Run commands of the guide with a small network and two steps; return what they print."""
    printed = []
    for command in commands:
        name, *overrides = shlex.split(shorter(command))
        ended = cli(name, *overrides)
        assert ended.status == 0, f"{section}: {command}: {ended.err}"
        printed.append(ended.out)
    return printed


def shorter(text: str) -> str:
    """Commands or a table with two steps instead of 300, and a small CapsNet."""
    small = text.replace(
        "model=capsnet,", "model=capsnet, model.channels=4, model.primary.types=2,"
    )
    small = small.replace("model=capsnet_slim", "model=capsnet_slim model.decoder=[8]")
    small = small.replace("trainer.check_val_every_n_epoch=10", "")
    return small.replace("max_steps=300", "max_steps=2")


def commands_of_guide() -> dict[str, list[str]]:
    """The commands of each section."""
    guide = (ROOT / "docs" / "guides" / "own_pictures.md").read_text()
    commands = {}
    for section in guide.split("\n## "):
        title = section.partition("\n")[0]
        commands[title] = re.findall(r"^capsule-lab (.*)", section, re.MULTILINE)
    return commands


@pytest.mark.whole
@pytest.mark.usefixtures("runs_here")
def test_commands_for_folders(cli: Cli) -> None:
    make_pictures(Path("pictures"), PER_CLASS, largest=60)
    commands = commands_of_guide()
    _, _, predicted = run_commands(cli, "first", commands["# Your own pictures"])
    assert re.search("|".join(KINDS), predicted)


@pytest.mark.slow  # large images
def test_commands_for_strips(cli: Cli) -> None:
    for label in ("0", "1"):
        for number in range(6):
            add(Path("strips") / label / f"{number}.png", Image.effect_noise((733, 3), 50))
    commands = commands_of_guide()["Strips and signals"]
    assert len(run_commands(cli, "strips", commands)) == 2


@pytest.mark.whole
@pytest.mark.usefixtures("runs_here")
def test_commands_for_folds_and_groups(cli: Cli) -> None:
    make_pictures(Path("pictures"), 24, largest=60)
    lines = ["file,group"]
    for file in sorted(Path("pictures").glob("*/*.*")):
        lines.append(f"{file.relative_to('pictures')},patient {int(file.stem) // 2}")
    Path("pictures/groups.csv").write_text("\n".join(lines))
    guide = (ROOT / "docs" / "guides" / "own_pictures.md").read_text()
    (table,) = re.findall(r"^```yaml\n(paper.*?)^```", guide, re.MULTILINE | re.DOTALL)
    Path("folds.yaml").write_text(shorter(table.replace("folds: 5\n", "folds: 2\n")))
    *_, report = run_commands(cli, "folds", commands_of_guide()["Folds and groups"])
    assert "folds of dynamic routing: 0: " in report


@pytest.mark.whole
@pytest.mark.usefixtures("runs_here")
def test_commands_from_arrays_to_a_published_network(cli: Cli) -> None:
    """Three unbalanced classes of colour images, in folds: train, compare, explore, predict, export."""
    guide = (ROOT / "docs" / "guides" / "own_pictures.md").read_text()
    (code,) = re.findall(r"test_arrays.py -->\n```py\n(.*?)```", guide, re.DOTALL)
    exec(code, {})
    commands = commands_of_guide()["Arrays"][
        :6
    ]  # the others, of several labels, are in test_arrays.py
    assert [command.split()[0] for command in commands] == [
        "train", "train", "compare", "explorer", "predict", "export",
    ]  # fmt: skip
    trained, _, compared, explored, predicted, exported = run_commands(cli, "arrays", commands)
    assert "classes     balanced error" in trained
    assert "routing" in compared
    assert "squares.html" in explored
    assert predicted.count("squares.npz[") == 150
    assert "model.safetensors" in exported
    assert "30 test images" in Path("squares/README.md").read_text()


def test_every_section_of_the_guide_with_commands_has_a_test() -> None:
    tested = {
        "# Your own pictures",
        "Strips and signals",
        "Arrays",
        "Unbalanced classes",
        "Folds and groups",
        "Several labels a picture",  # in test_label_file.py
    }
    assert {name for name, commands in commands_of_guide().items() if commands} == tested


@pytest.mark.whole  # three fits
def test_commands_for_unbalanced_classes(cli: Cli) -> None:
    """The weights with the best balanced error are tested, and the summary shows results by class."""
    commands = commands_of_guide()["Unbalanced classes"]
    assert len(commands) == 3
    make_pictures(Path("pictures"), PER_CLASS, largest=60)
    few = sorted(Path("pictures", "disc").iterdir())[4:]
    for picture in few:
        picture.unlink()
    for printed in run_commands(cli, "unbalanced", commands):
        assert "(always answering the most frequent class: " in printed
        assert "classes     balanced error " in printed
        assert "disc " in printed
        assert "% of 1 images" in printed


# --- what is wrong


def text(disc: Path) -> None:
    add(disc / "bad.png", b"text")


def one_pixel(disc: Path) -> None:
    add(disc / "dot.png", Image.new("L", (1, 1)))


def too_wide(disc: Path) -> None:
    add(disc / "a.png", Image.new("1", (100_000, 2_000)))


def link_loop(disc: Path) -> None:
    (disc / "loop.png").symlink_to("loop.png")
    (disc / "around").symlink_to(disc, target_is_directory=True)


def broken_link(disc: Path) -> None:
    (disc / "no.png").symlink_to("x")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (text, r"bad.png \(it is not a picture\)"),
        (one_pixel, r"dot.png \(it has a single pixel\)"),
        (too_wide, r"a.png \(.* Pillow's limit against"),
        (link_loop, r"loop.png \(Too many levels of symbolic links\)"),
        (broken_link, r"no.png \(No such file or directory\)"),
    ],
)
def test_a_picture_that_cannot_be_read_fails_or_is_left_out(
    folder: Path, damage: Callable[[Path], None], reason: str
) -> None:
    damage(folder / "disc")
    message = f"1 of 37 pictures of {folder} cannot be read: disc/{reason}.*; expected .*bad=skip"
    with pytest.raises(DataError, match=message) as failed:
        module(folder)
    assert "\n" not in str(failed.value)
    assert packs() == []
    assert module(folder, bad="skip").provenance["left_out"] == 1


def test_five_of_many_unreadable_pictures_are_named(folder: Path) -> None:
    for number in range(7):
        add(folder / "disc" / f"bad{number}.png", b"text")
    message = r"7 of 43 pictures .*bad4.png \(it is not a picture\) and 2 more; expected"
    with pytest.raises(DataError, match=message):
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


def empty_class(folder: Path) -> None:
    (folder / "empty").mkdir()


def class_of_the_test_alone(folder: Path) -> None:
    with_parts(folder, "test/star")


def part_of_another_name(folder: Path) -> None:
    with_parts(folder, "valid")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (only_one_class, "own has one class, square; expected two classes or more"),
        (
            no_class,
            "own has no folders; expected two classes or more, .*, or data.labels=<a CSV file",
        ),
        (empty_class, "own/empty has no pictures; expected files that end in .bmp, "),
        (class_of_the_test_alone, "test/star is not a class of train; expected folders"),
        (part_of_another_name, "own has train and valid; expected only train, val and test"),
        (shutil.rmtree, r"own cannot be read \(No such file or directory\); expected a folder"),
    ],
)
def test_folders_that_are_no_classes_are_reported(folder: Path, damage: Any, message: str) -> None:
    damage(folder)
    data = module(folder, stage=None)
    with pytest.raises(DataError, match=message):
        _ = data.spec


def test_a_folder_without_classes_cannot_test_a_trained_network(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    data = module(folder, stage=None)
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
    message = r"own/disc cannot be read \(Permission denied\); expected a readable folder"
    with pytest.raises(DataError, match=message):
        _ = module(folder, stage=None).spec


def test_a_class_without_a_readable_picture_is_reported(folder: Path) -> None:
    for path in (folder / "disc").iterdir():
        path.write_bytes(b"text")
    message = r"no picture of .*own/disc can be read; expected one or more"
    with pytest.raises(DataError, match=message):
        module(folder, bad="skip")


AUGMENTATION = "data.augment_with contains"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 2}, "data.channels is 2; expected 'auto', 1 or 3"),
        ({"background": "blank"}, "data.background is 'blank'; expected a colour, such as white"),
        ({"shift": 16}, "data.shift is 16; expected fewer than the 16 pixels"),
        ({"size": [16, 40], "shift": 16}, "data.shift is 16; expected fewer than the 16 pixels"),
        ({"test_share": "1/0"}, "data.test_share is '1/0'; expected a number or a fraction"),
        ({"test_share": 0.001}, "data.test_share is 1/1000, 0 of 36 .*: set data.test_share=1/12$"),
    ],
)
def test_invalid_options_are_refused(made: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module(made, **options)


@pytest.mark.parametrize(
    "size",
    [1, -64, True, [], [16], [16, 16, 3], [16, 1], [True, 16]],
    ids=str,
)
def test_a_size_of_another_kind_is_refused(size: Any) -> None:
    message = r"^data\.size is .*; expected pixels a side, 2 or more, or \[height, width\]$"
    with pytest.raises(ValueError, match=message):
        PictureFolder(size=size)


def warnings_of_fit(
    folder: Path, size: Any, fit: str, caplog: pytest.LogCaptureFixture
) -> list[str]:
    caplog.clear()
    module(folder, size=size, fit=fit)
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if "data.fit" in message]


@pytest.fixture
def mixed(tmp_path: Path, sides: tuple[int, int]) -> Path:
    """Two classes with a square and five pictures of these sides."""
    folder = tmp_path / "mixed"
    for label in ("0", "1"):
        add(folder / label / "square.png", Image.effect_noise((30, 30), 50))
        for number in range(5):
            add(folder / label / f"{number}.png", Image.effect_noise(sides, 50))
    return folder


THIN, HIGH, USUAL = (733, 3), (20, 90), (160, 90)
LOSS = "cuts off the larger part of most pictures, such as"
PROPORTIONS = "set data.fit=stretch, which changes their proportions"
EVERYTHING = "set data.fit=pad, which keeps everything, or stretch; or set"


@pytest.mark.parametrize(
    ("sides", "size", "fit", "expected"),
    [
        (THIN, 24, "crop", f"{LOSS} 100 % of one of 733 wide and 3 high; {PROPORTIONS}"),
        (THIN, (24, 80), "crop", f"{LOSS} 99 % of one of 733 wide and 3 high; {PROPORTIONS}"),
        (
            HIGH,
            24,
            "crop",
            f"{LOSS} 78 % of one of 20 wide and 90 high; {EVERYTHING} data.size=[108,24]",
        ),
        (
            HIGH,
            (24, 80),
            "crop",
            f"{LOSS} 93 % of one of 20 wide and 90 high; {EVERYTHING} data.size=[108,24]",
        ),
        (THIN, 24, "pad", f"fewer than 4 of 24 pixels in one direction, .*; {PROPORTIONS}"),
        (HIGH, (16, 17), "pad", f"fewer than 4 of 17 pixels in one direction, .*; {PROPORTIONS}"),
    ],
)
def test_an_image_that_shows_little_of_most_pictures_is_a_warning(
    mixed: Path, size: Any, fit: str, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    (message,) = warnings_of_fit(mixed, size, fit, caplog)
    assert re.search(expected.replace("[", r"\["), message)
    advice = [(size, other) for other in ("pad", "stretch") if f"{other}, which" in message]
    advice += [((108, 24), "crop")] if "[108,24]" in message else []
    for other_size, other_fit in advice:
        assert warnings_of_fit(mixed, other_size, other_fit, caplog) == []


@pytest.mark.parametrize(
    ("sides", "size", "fit"),
    [
        (USUAL, 24, "crop"),
        (HIGH, 24, "pad"),
        (THIN, 24, "stretch"),
        (THIN, (4, 733), "crop"),
        (HIGH, (60, 20), "crop"),
    ],
    ids=str,
)
def test_an_image_that_shows_most_of_a_picture_gives_no_warning(
    mixed: Path, size: Any, fit: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert warnings_of_fit(mixed, size, fit, caplog) == []


def test_the_sides_of_a_turned_picture_are_those_that_are_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "turned"
    quarter_turn = Image.Exif()
    quarter_turn[0x0112] = 6
    for label in ("0", "1"):
        for number in range(6):
            name = folder / label / f"{number}.jpg"
            name.parent.mkdir(parents=True, exist_ok=True)
            Image.effect_noise((20, 60), 50).save(name, exif=quarter_turn)
    assert warnings_of_fit(folder, (20, 60), "crop", caplog) == []


THIRDS = Image.new("RGB", (90, 30))
"""A picture of three squares side by side: red, green and blue."""
for third, colour in enumerate(("#f00", "#0f0", "#00f")):
    THIRDS.paste(colour, (30 * third, 0, 30 * third + 30, 30))
R, G, B = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]
WHITE = [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("size", "fit", "columns"),
    [
        ((10, 30), "crop", [R, G, B]),
        ((10, 10), "crop", [G, G, G]),
        ((30, 10), "crop", [G, G, G]),
        ((10, 50), "pad", [WHITE, G, WHITE]),
        ((12, 60), "stretch", [R, G, B]),
    ],
    ids=str,
)
def test_an_oblong_image_shows_the_part_that_fit_says(
    tmp_path: Path, size: tuple[int, int], fit: str, columns: list[list[float]]
) -> None:
    """Colours in the middle row, at the left edge, in the middle and at the right edge; stored and in predictions."""
    for label in ("0", "1"):
        for number in range(6):
            add(tmp_path / "own" / label / f"{number}.png", THIRDS)
    data = module(tmp_path / "own", size=size, fit=fit)
    height, width = size
    assert data.spec.image_shape == (3, height, width)
    assert data.input_form["size"] == [height, width]
    stored = data.sets["train"].images.read()[0] / 255
    row = stored[:, height // 2]
    seen = row[:, [1, width // 2, width - 2]].T
    assert seen.tolist() == columns
    assert data.from_picture(THIRDS).equal(stored)


def test_random_changes_of_oblong_images_keep_their_shape_and_shift_by_a_tenth_of_each_side(
    made: Path,
) -> None:
    rotation = {"RandomRotation": {"degrees": 20}}
    changed = augmented(made, size=(20, 60), mirror=True, augment_with=[rotation])
    assert changed.shape[1:] == (3, 20, 60)
    data = PictureFolder(size=(20, 60))
    white = torch.full((1000, 3, 20, 60), 255, dtype=torch.uint8)
    is_black = data.transform(white, torch.arange(1000), augment=True)[:, 0] == 0
    rows = is_black.all(2).sum(1)
    columns = is_black.all(1).sum(1)
    assert (int(rows.max()), int(columns.max())) == (2, 6)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ("os.system", f"{AUGMENTATION} 'os.system'; expected classes of torchvision"),
        ({"functional": {}}, f"{AUGMENTATION} {{'functional': {{}}}}; expected classes"),
        ({"RandomRotation": {"angle": 1}}, "RandomRotation refuses its arguments: .*angle"),
        ({"RandomCrop": {"size": 3}}, "gives torch.uint8 of shape .3, 3, 3.; expected"),
    ],
)
def test_invalid_augmentation_is_refused(made: Path, transform: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        module(made, augment_with=[transform])


def test_pictures_that_become_equal_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "strips"
    for label in range(2):
        strip = Image.new("L", (300, 3))
        left = 50 * label
        strip.paste(255, (left, 0, left + 20, 3))
        for number in range(6):
            add(folder / f"{label}" / f"{number}.png", strip)
    module(folder, fit="stretch")
    assert "blank" not in caplog.text
    module(folder, fit="crop")
    message = "the training set of PictureFolder has 10 blank images among 10 that were looked at"
    assert message in caplog.text


@pytest.mark.parametrize("numbers", [(2, 2), (3, 2), (2, 2, 2), (3, 3, 4), (9, 2), (2, 40)])
@pytest.mark.parametrize(
    "options", [{}, {"test_share": 0.9}, {"test_share": "1/100", "validation_share": 0.99}]
)
def test_advice_about_shares_is_accepted_until_the_folder_can_be_used(
    tmp_path: Path, numbers: tuple[int, ...], options: dict[str, Any]
) -> None:
    few = tmp_path / "few"
    for label, number in enumerate(numbers):
        for picture in range(number):
            add(few / f"class{label}" / f"{picture}.png", Image.new("L", (8, 8), picture))
    for _ in range(3):
        options = followed(options, few)
    module(few, **options).setup("test")


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
    message = r"test_share is 1/5, 5 of 25 images; .*: there is a single image of class disc"
    with pytest.raises(ValueError, match=message):
        module(folder)


def test_a_missing_path_is_one_line(cli: Cli) -> None:
    ended = cli("train", "data=folder", *TINY_CAPSNET)
    assert ended.status != 0
    message = "data.path is missing; expected data.path=<a folder with a folder of pictures per cl"
    assert message in ended.err
    assert "Traceback" not in ended.err
