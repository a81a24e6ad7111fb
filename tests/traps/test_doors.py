"""What people type into load, Split, Split.of, build and a list of names: it works, or a
CourseError says what to give. Findings C and D, H19, H26, B3 and B4, and whatever came to mind."""

import itertools
import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from course_lib import MODELS, RECIPES, Split, build, halves, load
from course_lib.__main__ import main
from course_lib.data import batches
from course_lib.datasets.cifar10 import crop_flip
from course_lib.errors import CourseError, pick
from course_lib.zoo import matching
from tests.helpers import THREE, images, labels, seeded, split, tiny_dataset

BYTES = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)  # [N, H, W, C]
GREY, Y = BYTES[..., 0], np.arange(6) % 3
COLOURS, GREYS = (torch.from_numpy(a) for a in (BYTES.transpose(0, 3, 1, 2).copy(), GREY[:, None]))
PICTURES = [Image.fromarray(a) for a in BYTES]


class Pictures(torch.utils.data.Dataset):
    """A torch Dataset as torchvision's are: it has class names, and no IndexError at its end."""

    def __init__(self, picture, n=6):
        self.picture, self.n, self.classes = picture, n, ["cat", "dog", "frog"]

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.picture(i % 6), i % 3


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(GREY, Y, strict=True)

OF = {  # what Split.of is given, and the images that it makes of it
    "bytes [N, H, W]": ((GREY, Y), GREYS), "bytes [N, H, W, C]": ((BYTES, Y), COLOURS),
    "bytes [N, C, H, W]": ((COLOURS, Y), COLOURS), "int64": ((GREY.astype(int), Y), GREYS),
    "uint16": ((GREY.astype("u2"), list(Y)), GREYS), "lists": ((GREY.tolist(), Y.tolist()), GREYS),
    "float64": ((GREY / 255, Y), (GREYS.double() / 255).float()),
    "half": ((images(6).half(), labels(6)), images(6).half().float()),
    "with a gradient": ((images(6).requires_grad_(), labels(6)), images(6)),
    "bool": ((GREY > 99, Y), (GREYS > 99).float()),
    "sparse": ((images(6).to_sparse(), Y), images(6)),
    "a table": ((images(6, (14,)), Y), images(6, (14,))), "Keras": ((BYTES, Y[:, None]), COLOURS),
    "float labels": ((GREY, Y.astype(float)), GREYS), "a pair": (((GREY, Y),), GREYS),
    "a batch": ((next(iter(DataLoader(TensorDataset(COLOURS, labels(6)), 6))),), COLOURS),
    "a list of pictures": ((PICTURES, Y), COLOURS),
    "pictures": ((Pictures(PICTURES.__getitem__),), COLOURS),
    "grey pictures": ((Pictures(lambda i: Image.fromarray(GREY[i])),), GREYS),
    "pictures with transparency": ((Pictures(lambda i: PICTURES[i].convert("RGBA")),), COLOURS),
    "a Dataset of NumPy": ((Pictures(BYTES.__getitem__),), COLOURS),
    "a stream": ((Stream(),), GREYS),
    "a Subset": ((Subset(Pictures(BYTES.__getitem__), range(6)),), COLOURS),
    "a DataLoader": ((DataLoader(TensorDataset(GREYS, labels(6)), 4),), GREYS),
    "pairs": (([*zip(GREY, Y, strict=True)],), GREYS),
    "a split": ((Split(GREYS, labels(6), THREE),), GREYS)}


@pytest.mark.parametrize("name", OF)
def test_c_split_of_takes_what_people_have(name):
    given_, x = OF[name]
    found = Split.of(*given_)
    assert torch.equal(found.x, x) and found.x.dtype in (torch.uint8, torch.float32)
    assert found.y.tolist() == Y.tolist() and found.y.dtype == torch.int64
    named = name == "a split" or isinstance(given_[0], Pictures | Subset)
    assert found.classes == (THREE if named else ("0", "1", "2"))
    assert Split.of((found.x, found.y), classes=list("abc")).classes == ("a", "b", "c")


def test_c_a_slow_one_has_a_progress_bar(monkeypatch, capsys):
    now = itertools.count()
    for clock, shows in ((lambda: next(now), True), (lambda: 0, False)):  # each look costs a second
        monkeypatch.setattr("tqdm.std.time", clock)
        Split.of(Pictures(GREY.__getitem__, 50))
        assert ("reading" in (err := capsys.readouterr().err)) == shows == bool(err)


def of(*words, **names):
    return lambda: Split.of(*words, **names)


DOORS = {  # a call, and what the error says
    "Split(numpy)": (lambda: Split(GREY, Y, THREE), r"ndarray.* call Split.of\(x, y\)"),
    "Split(numpy labels)": (lambda: Split(images(6), Y, THREE), "ndarray. Split.of"),
    "Split(no batch)": (lambda: Split(images(6)[:, 0, 0, 0], labels(6), THREE), r"\[N, C, H, W\]"),
    "half": (lambda: Split(images(6).half(), labels(6), THREE), "bytes or float32 .*float16"),
    "Split(0 to 255)": (lambda: Split(255 * images(6), labels(6), THREE), "from 1.* to 25"),
    "Split(float labels)": (lambda: Split(images(6), labels(6).float(), THREE), "int64"),
    "negative labels": (of(GREY, Y - 1), r"from 0, one per image; .* \[-1, 0, 1"),
    "labels beyond": (of(GREY, Y, classes=["a", "b"]), "there are 2 classes"),
    "wild labels": (of(GREY, Y + 10**12), "np.unique"), "NaN": (of(GREY * np.nan, Y), "nan"),
    "half a label": (of(GREY, Y + 0.5), "Labels must number"),
    "words": (of(GREY, ["a"] * 6), "list"),
    "one-hot": (of(GREY, np.eye(3)[Y]), r"6 images need 6 labels.*\(6, 3\)"),
    "normalised": (of(GREY / 100 - 1, Y), r"\[0, 1\].*leave out Normalize"),
    "bytes of 0 and 1": (of((GREY > 9).astype("u1"), Y), "nearly black.* Give booleans"),
    "ints of 0 and 1": (of((GREY > 9).astype(int), Y), "bytes or float32 .*int64"),
    "lengths": (of(GREY, Y[:5]), "6 images need 6 labels"),
    "empty": (of(GREY[:0], Y[:0]), "Labels"),
    "an empty Dataset": (of(Pictures(abs, 0)), "without pairs"),
    "no labels": (of(GREY), "Give images"),
    "a path": (of("mnist/"), "Give images and labels"), "None": (of(None), "NoneType"),
    "a course data set": (of(tiny_dataset()), "such as data.test"),
    "dicts": (of([{"x": 1}]), "list of dict"), "ragged": (of([[1, 2], [3]], [0, 1]), "one shape"),
    "shapes": (of(Pictures(lambda i: GREY[i, i:])), "differ in shape.*Resize"),
    "complex": (of(GREY + 1j, Y), "not hold numbers"),
    "no array": (of(GREY, None), "without pairs"),
    "classes=3": (of(GREY, Y, classes=3), "classes is 3; give a list"),
    "classes='cat'": (of(GREY, Y, classes="cat"), "give a list with the name of each class"),
    "take too many": (lambda: split(5).per_class(2), "smallest class has 1 here"),
    "limit above the size": (lambda: halves(split(20), 21, 0), "limit=21 is more than the 20"),
    "masked twice": (lambda: split().masked(1).masked(2), "hides at most one"),
    "masked of a word": (lambda: split().masked("1"), "no example '1'"),
    "masked of two": (lambda: split().masked(np.array([1, 2])), "no example array"),
    "without(1.5)": (lambda: tiny_dataset().without(torch.tensor(1.5)), "Unknown class tensor"),
    "masked beyond": (lambda: split().masked(26), "no example 26 to hide; this split holds 26"),
    "a batch of none": (lambda: next(batches(split(), 0)), "batch size is 0"),
    "a table cropped": (lambda: crop_flip(images(4, (14,)), seeded(0)), r"the shape \(4, 14\)"),
    "without(3)": (lambda: tiny_dataset().without([3]), "0 to 2"),
    "without two of three": (lambda: tiny_dataset().without(["cat", "dog"]), "two must be left"),
    "without nothing": (lambda: tiny_dataset().without(None), "Unknown class None"),
    "without('Shrit')": (lambda: load("fashion-mnist").without("Shrit"), "Did you mean 'Shirt'"),
    "load(root=5)": (lambda: load("cifar10", root=5), "root is 5"),
    "load(limit=0)": (lambda: load("cifar10", limit=0), "limit is 0"),
    "load(limit=True)": (lambda: load("cifar10", limit=True), "limit is True"),
    "a seed too long": (lambda: load("adult", seed=2**63), "seed is 9223372036854775808"),
    "build(device=)": (lambda: build("lenet5", device="cuda"), r"takes classes, channels.*\.to\("),
    "build('LeNet-5')": (lambda: build("LeNet-5"), "Did you mean 'lenet5'"),
    "build(classes='10')": (lambda: build("lenet5", classes="10"), "classes of lenet5 is '10'"),
    "build(seed=2**64)": (lambda: build("lenet5", seed=2**64), "seed is 184.*616; it must be"),
    "a long name": (lambda: build("x" * 10**6), "Unknown model 'x{50}")}


@pytest.mark.parametrize("name", DOORS)
def test_c_a_sentence_says_what_to_give(name):
    call, say = DOORS[name]
    with pytest.raises(CourseError, match=say) as caught:
        call()
    assert len(str(caught.value)) < 600


def test_c_of_ones_own(monkeypatch):
    """A network's own words are its own business."""
    assert sum(p.numel() for p in build("resnet18", large=True, classes=2).parameters()) > 10**7
    monkeypatch.setitem(MODELS, "mine", lambda classes=2, dropout=0.5: torch.nn.Dropout(dropout))
    assert build("mine", dropout=0.25).p == 0.25
    with pytest.raises(CourseError, match="classes of mine is 1"):
        build("mine", classes=1)


@pytest.mark.parametrize(("name", "first"), [
    ("pgd-at", "'exp1/pgd-at', 'exp4/pgd-at'"), ("EXP1/Natural", "'exp1/natural'"),
    ("exp1/naturel", "'exp1/natural'"), ("reweihgt-05", "'exp2/reweight-05'"), ("", None)])
def test_d_the_suggestion_comes_first(name, first):
    with pytest.raises(CourseError) as one:
        pick(RECIPES, name, "recipe")
    with pytest.raises(CourseError) as many:
        matching(RECIPES, [name.replace("EXP1/", "")])
    for said in (str(one.value), str(many.value)):
        hint = said.partition(". ")[2]
        assert hint.startswith(f"Did you mean {first}" if first else "Known: ")
        assert said.count("/") <= 40 and sum(n in said for n in RECIPES) <= 14
    assert ("more." in said) == (first is None)


@given(st.integers(2, 30), st.data())
def test_h19_what_is_hidden_stays_hidden(n, data):
    s, i = split(n, (1, 1, 1)), data.draw(st.integers(0, n - 1))
    less, gone = s.masked(i), s.x[i].item()
    wants = data.draw(st.lists(st.integers(0, n - 1), max_size=40))
    parts = [less.take(torch.tensor(wants, dtype=torch.long)), less.take(slice(None, None, 2)),
             less.take(less.y == less.y[i]), less.take(slice(None))]
    if least := int(parts[-1].y.bincount(minlength=3).min()):
        parts.append(less.per_class(least))
        assert parts[-1].y.bincount().tolist() == [least] * 3
    whole = type(tiny_dataset())("tiny", THREE, s, lambda: (less, s.take([0])))
    assert gone not in whole.without("dog").train.x
    assert len(whole.whole().train) == n and (i == 0 or gone not in whole.whole().train.x)
    assert all(gone not in part.x for part in parts) and parts[0].y.tolist() == [
        int(s.y[place]) for place in wants if place != i]


@pytest.mark.parametrize(("words", "code", "say"), [
    ("evaluate cifar10/pgd-at --per-class 1 --attack pgd10", 0, "Warning: CIFAR-10.*--data FOLDER"),
    ("train exp1/pgd-at", 1, r"--data FOLDER\), or ask for the 6,000 embedded ones: --limit 6000"),
    ("train cifar10/pgd-at", 1, "embedded: --limit 2000"), ("examine cifar10/pgd-at --jobs 1 "
     "--attack pgd10 --per-class 2", 1, "the 2,000 that are embedded")])
def test_b3_b4_offline_advice_is_right_and_in_the_shells_words(words, code, say, tmp_path,
                                                               monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    with warnings.catch_warnings(action="default"):  # as in a shell
        assert main(words.split()) == code
    out, err = capsys.readouterr()
    assert "root=" not in err and "limit=" not in err
    assert re.search(say, err) and ("Attack: pgd10 8/255" in out) == (not code)
