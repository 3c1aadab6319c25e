"""Images and texts in folders, and windows of series, as datasets that `fit` takes."""

import io
import os

import numpy as np
import pytest
from PIL import Image

import keras_dist as kd
from keras_dist import layers, utils
from keras_dist.errors import DataError

SIZE = (6, 7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for number, name in enumerate(("cat", "dog")):
        for index in range(5):
            path = root / name / ("below" if index == 4 else ".") / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4 + index, 5), (number * 100, index, 7)).save(path)
    (root / "dog" / "notes.md").write_text("no image")
    return root


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    for name, word in (("bad", "awful"), ("good", "fine")):
        (root / name).mkdir()
        for index in range(6):
            (root / name / f"{index}.txt").write_text(f"{word} film {index}", "utf-8")
    return root


def images(folder, **options):
    return utils.image_dataset_from_directory(folder, image_size=SIZE, batch_size=4, verbose=False, **options)


def test_images_and_their_classes(folder):
    dataset = images(folder, shuffle=False)
    assert dataset.class_names == ["cat", "dog"] and len(dataset) == 3
    assert [os.path.relpath(path, folder) for path in dataset.file_paths][3:6] == [
        "cat/3.png",
        "cat/below/4.png",
        "dog/0.png",
    ]
    x, y = (np.concatenate(parts) for parts in zip(*dataset, strict=True))
    assert x.shape == (10, *SIZE, 3) and x.dtype == "float32" and y.tolist() == [0] * 5 + [1] * 5
    np.testing.assert_allclose(x[6], np.broadcast_to([100, 1, 7], (*SIZE, 3)), rtol=1e-6)
    for mode, expected in (("binary", [[1.0]]), ("categorical", [[0.0, 1.0]]), ("int", [1])):
        assert images(folder, shuffle=False, label_mode=mode)[1][1][1:2].tolist() == expected
    given = images(folder, shuffle=False, labels=list(range(10)))
    assert given[1][1].tolist() == [4, 5, 6, 7] and given.class_names[:2] == ["0", "1"]
    alone = images(folder, shuffle=False, labels=None, class_names=None, color_mode="grayscale")
    assert alone[0].shape == (4, *SIZE, 1) and alone.class_names is None
    assert images(folder, class_names=["dog"], shuffle=False).file_paths == dataset.file_paths[5:]
    single = utils.image_dataset_from_directory(folder, image_size=SIZE, batch_size=None, verbose=False)
    assert len(single) == 10 and next(iter(single))[0].shape == (*SIZE, 3)


def test_subsets_share_no_file(folder):
    options = {"validation_split": 0.3, "seed": 5}
    first, last = images(folder, subset="both", **options)
    assert images(folder, subset="training", **options).file_paths == first.file_paths
    assert images(folder, subset="validation", **options).file_paths == last.file_paths
    assert (len(first.file_paths), len(last.file_paths)) == (7, 3)
    assert not {*first.file_paths} & {*last.file_paths}


def test_links_in_circles_end(folder, tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("RGB", (3, 3)).save(tmp_path / "a" / "1.png")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "a" / "cats").symlink_to(folder / "cat")
    assert len(images(tmp_path, labels=None).file_paths) == 1
    assert len(images(tmp_path, labels=None, follow_links=True).file_paths) == 6


def test_rows_are_shuffled_in_each_epoch():
    seen = []
    dataset = utils.timeseries_dataset_from_array(np.arange(20), np.arange(20), 1, batch_size=4, shuffle=True, seed=0)
    model = kd.Sequential([kd.Input((1,)), layers.Dense(1)])
    model.compile("sgd", "mse")
    noted = dataset.map(lambda x, y: (seen.extend(y.tolist()), (x * 0.0, y * 0.0))[1])
    model.fit(noted, epochs=2, verbose=0, seed=1)
    seen = seen[-40:]
    assert sorted(seen[:20]) == sorted(seen[20:]) == list(range(20)) and seen[:20] != seen[20:]
    assert [y.tolist() for _, y in dataset] == [y.tolist() for _, y in dataset]


def test_texts(texts):
    dataset = utils.text_dataset_from_directory(texts, batch_size=5, shuffle=False, verbose=False)
    x, y = dataset[1]
    assert x.tolist() == ["awful film 5", "fine film 0", "fine film 1", "fine film 2", "fine film 3"]
    assert y.tolist() == [0, 1, 1, 1, 1]
    short = utils.text_dataset_from_directory(texts, max_length=4, labels=None, shuffle=False, verbose=False)
    assert short[0].tolist() == ["awfu"] * 6 + ["fine"] * 6
    layer = layers.TextVectorization(output_sequence_length=3)
    layer.adapt(dataset.map(lambda x, y: x))
    numbers = dataset.map(lambda x, y: (layer(x), y), num_parallel_calls=2)
    assert numbers.take(1)[0][0].shape == (5, 3) and len(numbers.skip(1)) == 2
    model = kd.Sequential([layer, layers.Embedding(12, 4), layers.Flatten(), layers.Dense(2)])
    model.compile("sgd", kd.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.evaluate(dataset, verbose=0), model.evaluate(dataset.take(9), verbose=0)
    assert np.allclose(*losses)


def test_windows():
    steps = np.arange(20)
    dataset = utils.timeseries_dataset_from_array(
        steps, steps * 10, 3, sequence_stride=4, sampling_rate=2, batch_size=3, start_index=1, end_index=18
    )
    x, y = (np.concatenate(parts) for parts in zip(*dataset, strict=True))
    assert x.tolist() == [[1, 3, 5], [5, 7, 9], [9, 11, 13], [13, 15, 17]] and y.tolist() == [10, 50, 90, 130]
    with pytest.raises(DataError, match="shorter than one window"):
        utils.timeseries_dataset_from_array(steps, None, 30)


def test_datasets_are_split():
    x, y = np.arange(10), np.arange(10) * 2
    left, right = utils.split_dataset((x, y), right_size=3, shuffle=True, seed=0)
    found = [int(value) for part in (left, right) for value, _ in part]
    assert sorted(found) == x.tolist() and (len(left), len(right)) == (7, 3)
    left, right = utils.split_dataset(x, left_size=0.5)
    assert list(left) == [0, 1, 2, 3, 4] and list(right.batch(2))[2].tolist() == [9]
    for sizes in ({}, {"left_size": 11}, {"left_size": 0.8, "right_size": 0.4}, {"left_size": 0}):
        with pytest.raises(DataError):
            utils.split_dataset(x, **sizes)


def test_images_are_written_and_read(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (5, 4, 3)).astype("float32")
    utils.save_img(tmp_path / "image.png", image, scale=False)
    np.testing.assert_array_equal(utils.img_to_array(utils.load_img(tmp_path / "image.png")), image)
    loaded = utils.load_img(str(tmp_path / "image.png"), "grayscale", (3, 8), "bilinear", keep_aspect_ratio=True)
    assert utils.img_to_array(loaded, "channels_first").shape == (1, 3, 8)
    scaled = utils.img_to_array(utils.array_to_img(np.moveaxis(image, -1, 0) / 9 + 4, "channels_first"))
    assert (scaled.min(), scaled.max()) == (0, 255)
    content = io.BytesIO((tmp_path / "image.png").read_bytes())
    assert kd.preprocessing.image.load_img(content, "rgba").size == (4, 5)
    with pytest.raises(DataError, match="must have the shape"):
        utils.array_to_img(np.ones((2, 2, 2)))


def test_broken_files_are_named(tmp_path):
    (tmp_path / "broken.png").write_bytes(b"\x89PNG and no more")
    with pytest.raises(DataError, match=r"broken\.png' cannot be read as an image"):
        list(images(tmp_path, labels=None))
    (tmp_path / "other.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match=r"other\.txt' must be a text file"):
        list(utils.text_dataset_from_directory(tmp_path, labels=None, verbose=False))
    for options in (
        {"labels": "all"},
        {"label_mode": "text"},
        {"validation_split": 0.2},
        {"subset": "training"},
        {"validation_split": 2.0, "subset": "training", "seed": 1},
        {"labels": [1, 2, 3]},
        {"crop_to_aspect_ratio": True, "pad_to_aspect_ratio": True},
        {"labels": "inferred"},
    ):
        with pytest.raises(DataError):
            images(tmp_path, **options)
    for absent in (images, kd.preprocessing.image.load_img, lambda path: kd.layers.StringLookup(vocabulary=path)):
        with pytest.raises(FileNotFoundError, match=r"given: .*nowhere") as caught:
            absent(tmp_path / "nowhere")
        assert isinstance(caught.value, DataError)
