"""Last layers with rows of one length: the repair itself, and that what is stored of it is of the
stored weights and can be made again."""

import copy

import pytest
import torch

from course_lib import build, evaluate, load, load_model
from course_lib.fairness import Report
from course_lib.lessons import contest
from tools import heads


@pytest.mark.parametrize("network", heads.IMAGES)
@pytest.mark.parametrize("equal", [True, False])
def test_only_the_last_rows_change_and_the_model_given_does_not(network, equal):
    model = build(network, seed=0)
    was = {key: value.clone() for key, value in model.state_dict().items()}
    now = contest.with_rows(model, 0.5, equal).state_dict()
    (changed,) = [key for key in was if not torch.equal(was[key], now[key])]
    length = was[changed].norm(dim=1)
    want = length.mean().expand(10) if equal else length
    assert length.std() > 0 and now[changed].norm(dim=1).allclose(0.5 * want)
    assert torch.cosine_similarity(was[changed], now[changed]).allclose(torch.ones(10))
    assert all(torch.equal(was[key], value) for key, value in model.state_dict().items())


def test_the_scale_is_chosen_on_validation_images():
    """The lowest worst error there, under an attack that does not depend on the logits' scale."""
    data, model = load("fashion-mnist", limit=1200), load_model("exp4/pgd-at")
    val, test = data.val.per_class(10), data.test.per_class(10)
    found = heads.changed(model, val, test)
    assert found["as trained"]["scale"] == 1.0
    for kind, equal in (("equal rows", True), ("own rows", False)):
        worst = {s: evaluate(contest.with_rows(model, s, equal), val, "cw20",
                             progress=False).rob.worst for s in heads.SCALES}
        assert worst[found[kind]["scale"]] == min(worst.values())
    scaled = [evaluate(contest.with_rows(without_biases(model), s, False), test, "cw20",
                       progress=False).rob for s in heads.SCALES]
    assert len({e.wrong for e in scaled}) == 1  # without biases a scale changes no prediction


def test_in_training_shirts_bias_rises_and_coats_falls():
    """As notebook 08 says, of PGD-AT in all five seeds."""
    classes = load("fashion-mnist", limit=10).classes
    for seed in range(5):
        nets = load_model("exp4/pgd-at", seed=seed), build("lenet5", seed=seed)
        last, first = (net.fc2.bias.data for net in nets)
        rise = dict(zip(classes, (last - first).tolist(), strict=True))
        assert rise["Shirt"] > 0.05 and rise["Coat"] < -0.02


def without_biases(model):
    model = copy.deepcopy(model)
    model.fc2.bias.data.zero_()
    return model


def test_every_stored_network_is_done_and_one_is_made_again():
    assert [(m.name, m.seed) for m, _ in heads.todo()] == [], "make heads"
    row = heads.stored()["exp4/trades-6"]["1"]
    test = load("fashion-mnist").test
    for kind, scale, equal in (("as trained", 1.0, False), ("equal rows", None, True),
                               ("own rows", None, False)):
        told = Report.from_json(row[kind]["report"])
        model = contest.with_rows(load_model("exp4/trades-6", seed=1),
                                  scale or row[kind]["scale"], equal)
        found = evaluate(model, test, "cw20", progress=False)
        for was, now in ((told.nat, found.nat), (told.rob, found.rob)):
            assert max(abs(a - b) for a, b in zip(was.wrong, now.wrong, strict=True)) <= 2, kind
