import pytest
import torch
from torch import nn

from course_lib import PGD, Split, load, load_model
from course_lib.evaluation import evaluate, predictions
from course_lib.inference import predict
from tests.helpers import THREE, Small, left_alone, seeded, split


class Reader(nn.Module):
    """Predicts what is written in the image: a value near 0.25 c means class c."""

    def forward(self, x):
        return -(4 * x.flatten(1)[:, :1] - torch.arange(3)).abs()


class Script:
    """An 'attack' whose outcome is known: image i comes to say what the script says for i."""

    eps = 0.5

    def __init__(self, said):
        self.said = torch.tensor(said)

    def __call__(self, model, x, y, *, generator):
        assert len(x), "no attack is asked to attack nothing"
        number = (100 * x[:, 0, 0, 1]).round().long()
        return written(self.said[number].tolist(), number)


def written(said, number=None):
    """[B, 1, 1, 2]: what the image says, and which one it is."""
    i = torch.arange(len(said)) if number is None else number
    return torch.stack([torch.tensor(said) / 4 + 0.01, i / 100], 1).reshape(-1, 1, 1, 2)


#        class          0  0  0  1  1  1  1  2  2
TRUTH = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
CLEAN = [0, 0, 2, 1, 0, 1, 1, 2, 2]  # wrong: the third and the fifth
UNDER = [0, 1, 0, 2, 1, 0, 1, 2, 2]  # both of these come right under attack; three others fall


@pytest.mark.parametrize("batch", [1, 4, 100])
@pytest.mark.parametrize(("count_clean", "robust"), [(True, (2, 3, 0)), (False, (1, 2, 0))])
def test_counts_in_both_conventions(count_clean, robust, batch):
    """Wrong clean or wrong attacked; or, as the papers' authors count, wrong attacked alone."""
    s = Split(written(CLEAN), TRUTH, THREE)
    r = evaluate(Reader(), s, Script(UNDER), name="script", count_clean=count_clean, batch=batch,
                 progress=False)
    assert (r.nat.wrong, r.rob.wrong, r.nat.counts) == ((1, 1, 0), robust, (3, 4, 2))
    assert (r.classes, r.attack, r.eps) == (THREE, "script", 0.5)


def test_predictions_are_what_the_counts_are_made_of():
    """With `skip_wrong` an image that is wrong when clean is not attacked."""
    s = Split(written(CLEAN), TRUTH, THREE)
    y, clean, attacked = predictions(Reader(), s, Script(UNDER), skip_wrong=False, batch=4)
    assert torch.equal(y, TRUTH) and clean.tolist() == CLEAN and attacked.tolist() == UNDER
    spared = predictions(Reader(), s, Script(UNDER))[2].tolist()
    assert spared == [u if c == t else c for t, c, u in zip(TRUTH, CLEAN, UNDER, strict=True)]
    r = evaluate(Reader(), s, Script(UNDER), flips=True, progress=False)
    assert r.flips.wrong == (2, 3, 0) and r.rob.wrong == (2, 3, 0)


@pytest.mark.parametrize(("noise", "at_least"), [(0.0, 0), (0.08, 5)])
def test_early_on_and_off_agree_up_to_examples_that_recover(noise, at_least):
    s = load("fashion-mnist").test.take(slice(0, 600))
    model, attack = load_model("exp1/pgd-at"), PGD(24 / 255, 3 / 255, 8, noise=noise)
    last = predict(model, s.images(), s.y) != s.y  # these need no attack
    ever, rest = last.clone(), ~last
    rights = torch.stack([right for _, right in attack.path(model, s.images(rest), s.y[rest],
                                                            generator=seeded(0))])
    last[rest], ever[rest] = ~rights[-1], (~rights).any(0)
    assert at_least <= (ever & ~last).sum() < ever.sum()
    early, full = (evaluate(model, s, attack, early=e, batch=600, progress=False)
                   for e in (True, False))
    for report, wrong in ((early, ever), (full, last)):
        assert report.rob.wrong == tuple(torch.bincount(s.y[wrong], minlength=10).tolist())
    assert early.nat == full.nat


def test_the_seed_decides_and_all_else_is_left_alone():
    model = Small(dropout=0.5).train()
    with left_alone(model):
        first, again, *others = (evaluate(model, split(300), PGD(0.02, 0.01, 2), seed=seed,
                                          progress=False) for seed in (0, 0, 1, 2, 3))
    assert first == again and any(first != other for other in others)


def test_a_masked_example_is_not_counted_and_without_a_budget_nothing_is_wrong():
    s = Split(written(CLEAN), TRUTH, THREE)
    r = evaluate(Reader(), s.masked(2), PGD(eps=0, steps=1), progress=False)
    assert r.nat.counts == (2, 4, 2) and r.nat.wrong == (0, 1, 0) and r.rob == r.nat
