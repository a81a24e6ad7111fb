"""One small step of everything on the stand-in GPU. It runs, equals the CPU's result, and moves no
more between host and GPU than it must."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from course_lib import METHODS, CourseError, Store, build, diagnostics, scores
from course_lib.attacks import OBJECTIVES, PGD, STARTS
from course_lib.data import AUGMENTATIONS, Split
from course_lib.evaluation import NAMED, evaluate, named
from course_lib.explorer.views import Explorer
from course_lib.lab.sweep import sweep
from course_lib.machine import device
from course_lib.training import Averaging, Optim, _Training, fit
from tests.gpu.standin import CPU, CUDA, standin
from tests.helpers import THREE, QuickJudge, Small, failing_at, images, labels, split

WEAK, VAL = PGD(0.1, 0.05, 3), split(12, seed=1)
EXACT = [Split(images(n, dtype=torch.float64), labels(n), THREE) for n in (24, 12)]
SGD = Optim("sgd", 0.05, 8, momentum=0.9, weight_decay=1e-3, nesterov=True, cosine=2)
ADAM = Optim("adam", 0.01, 8, averaging=Averaging(0.5))


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    """The CPU computes as the stand-in does, by PyTorch's own operations."""
    monkeypatch.setenv("COURSE_NATIVE", "0")


@pytest.fixture
def gpu():
    with standin() as gpu:
        yield gpu


def values(thing):
    """All that was computed, on the CPU."""
    thing = thing.state_dict() if isinstance(thing, nn.Module) else thing
    thing = vars(thing) if dataclasses.is_dataclass(thing) else thing
    thing = [*thing, *thing.values()] if isinstance(thing, dict) else thing
    if isinstance(thing, list | tuple):
        return [value for part in thing for value in values(part)]
    return [thing.detach().cpu() if isinstance(thing, Tensor) else thing]


def equal(here, there):
    """But for rounding, which the size of a batch may change."""
    for a, b in zip(here, there, strict=True):
        if isinstance(a, str | None):
            assert a == b
        else:
            torch.testing.assert_close(*map(torch.as_tensor, (a, b)), rtol=1e-5, atol=1e-6,
                                       equal_nan=True)


def both(compute):
    """On the GPU it gives what it gives on the CPU."""
    here = values(compute(CPU))
    with standin():
        equal(here, values(compute(CUDA)))


def small(name):
    method = METHODS[name]()
    return (dataclasses.replace(method, attack=dataclasses.replace(method.attack, steps=3))
            if hasattr(method, "attack") else method)


def trained(where, method, optim=SGD, stopped=0, store=None):
    """Weights and history after two epochs of three batches; it may stop at a forward pass."""
    def validate(model, at):
        return evaluate(model, EXACT[1], WEAK, progress=False, flips=method.wants_report == "flips")

    model = Small().double().to(where)
    if stopped:
        model.head.register_forward_pre_hook(failing_at(stopped))
    wanted = method.wants_report if method.update_every else optim.averaging
    run = fit(model, method, EXACT[0], epochs=2, optim=optim, seed=3, progress=False, store=store,
              validate=validate if wanted else None)
    return values([run.model, run.history])


def transfers(gpu, patch, method, optim=SGD):
    """What is trained on the GPU, and reads and uploads of the batches after each epoch's first,
    without those of validation."""
    marks, step, report = [(0, 0)], _Training.step, _Training.report

    def marked(t, *words):
        step(t, *words)
        marks.append(gpu.counts())

    def uncounted(t, at):
        before, made = (gpu.reads.copy(), gpu.uploads.copy()), report(t, at)
        gpu.reads, gpu.uploads = before
        return made

    patch.setattr(_Training, "step", marked)
    patch.setattr(_Training, "report", uncounted)
    made = trained(device(), method, optim)
    assert len(marks) == 7
    return made, [tuple(np.subtract(marks[i], marks[i - 1])) for i in (2, 3, 5, 6)]


def test_it_refuses_what_a_gpu_refuses_and_counts(gpu):
    x, i, g = torch.rand(4, 2).to("cuda"), torch.tensor([0, 1]), torch.Generator("cuda")
    for refused in (lambda: x + torch.rand(4, 2), lambda: torch.rand(4)[i.cuda()], x.numpy,
                    lambda: torch.rand(4, generator=torch.Generator(), device="cuda"),
                    lambda: torch.rand(4, generator=g), lambda: torch.cat([x, torch.rand(1, 2)])):
        with pytest.raises((RuntimeError, TypeError), match="cuda"):
            refused()
    assert torch.rand(4, generator=g, device="cuda").device == CUDA
    assert (x[i] * torch.tensor(2.0)).device == CUDA and gpu.counts() == (0, 3)
    for n, read in enumerate((lambda: x.sum().item(), x.tolist, x.cpu, lambda: bool(x.any()),
                              lambda: x[x > 0.5], lambda: float(x[0, 0]), x.nonzero), 1):
        read()
        assert gpu.counts() == (n, 3)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_each_method(name, gpu, monkeypatch):
    made, counts = transfers(gpu, monkeypatch, small(name))
    assert max(reads for reads, _ in counts) == 1  # the loss
    assert max(uploads for _, uploads in counts) <= 6  # images, labels, noise, class weights
    equal(trained(CPU, small(name)), made)


@pytest.mark.parametrize("optim", [
    *(dataclasses.replace(SGD, augment=kind) for kind in AUGMENTATIONS), ADAM,
    Optim("adamw", 0.01, 8, averaging=Averaging(accept=0.01))], ids=str)
def test_each_augmentation_and_average(optim, gpu, monkeypatch):
    made, counts = transfers(gpu, monkeypatch, METHODS["natural"](), optim)
    assert {*counts} == {(1, 2)}
    equal(trained(CPU, METHODS["natural"](), optim), made)


@pytest.mark.parametrize("stop", [False, True])
def test_nothing_is_read_inside_the_walk(stop, gpu):
    model, x, y = Small().cuda(), images(6).cuda(), labels(6).cuda()
    for changes in (*({"objective": o} for o in OBJECTIVES), *({"start": s} for s in STARTS),
                    {"noise": 0.1}, {"bf16": True}):
        for steps in (1, 4):
            gpu.reads.clear()
            PGD(0.2, 0.1, steps, **changes).walk(model, x, y, stop=stop, extra=1)
            assert gpu.reads.total() == 4, gpu.reads  # before it: images and labels are checked


@pytest.mark.parametrize("name", sorted(NAMED))
def test_each_attack(name, gpu):
    attack = QuickJudge(0.02, ("apgd-ce",)) if name == "autoattack" else named(name)
    model, part = ((Small(), VAL) if attack.eps <= 1 else  # a table
                   (build("table_mlp", classes=3), split(12, (14,))))
    gpu.seed = 5
    both(lambda where: [evaluate(model.to(where), part, attack, early=early, progress=False)
                        for early in (True, False)])
    evaluate(model, part, lambda x, y: x.flip(0), progress=False)
    build("lenet5")
    assert gpu.seed == 5  # its own random state stays as it was


def test_scores_and_diagnostics():
    def computed(where):
        model, x, y = Small().to(where), images(12).to(where), labels(12).to(where)
        group = torch.arange(12, device=where) % 4 // 2
        report, p = evaluate(model, VAL, WEAK, progress=False), model(x).detach().softmax(1)
        least = scores.least_eps(model, x, y, attack=WEAK, tolerance=0.02)
        path, steps = (f(model, VAL, WEAK) for f in (diagnostics.confusion_path,
                                                     diagnostics.steps_to_wrong))
        distance = diagnostics.boundary_distance(model, x, y)
        return [scores.cau(report), scores.cru_s(report), scores.cru_eps(least, y, 3), least,
                scores.grid_eps(model, x, y, attack=WEAK, increment=0.1, cap=0.2),
                scores.luf(p, p.flip(0)[None]), scores.eou(p[:, 0], y % 2, group, ("a", "b")),
                diagnostics.confusion(y, p.argmax(1), 3), path, diagnostics.kept(path),
                diagnostics.targets(path, own=False), steps, distance,
                diagnostics.between_classes(least.eps, distance, y)]

    both(computed)


@pytest.mark.parametrize("name", ["lenet5", "small_cnn", "preact_resnet_s"])
def test_networks(name):
    data = split(3, (1 if name == "lenet5" else 3, 32, 32))
    both(lambda where: fit(build(name, classes=3).to(where), METHODS["natural"](), data, epochs=1,
                           optim=SGD, seed=0, progress=False).model)


@pytest.mark.parametrize("name", ["wat", "cfol"])
def test_a_checkpoint_moves_between_devices(name, tmp_path):
    """Made on a GPU; gone on with without one, twice in the middle of an epoch; ended on a GPU."""
    method, store, undisturbed = small(name), Store(tmp_path), trained(CPU, small(name), ADAM)
    with standin(), pytest.raises(ArithmeticError):
        trained(device(), method, ADAM, 15, store)
    with pytest.raises(ArithmeticError), pytest.warns(match="gpu"):
        trained(device(), method, ADAM, 10, store)
    with standin(), pytest.warns(match="gpu"):
        equal(undisturbed, trained(device(), method, ADAM, store=store))


def test_out_of_memory(tmp_path):
    method, store, undisturbed = small("trades"), Store(tmp_path), trained(CPU, small("trades"))
    steps = []
    for memory in (60, 400, 600, 500):
        with standin(memory), pytest.raises(CourseError, match="out of memory.*smaller batches"):
            trained(device(), method, store=store)
        steps.append((store.latest() or (0,))[0])
    assert steps[0] == 0 < steps[1] < steps[2] < 6  # each went on from the one before
    with standin():
        equal(undisturbed, trained(device(), method, store=store))
    with standin(100), pytest.raises(CourseError, match="out of memory"):
        evaluate(Small().cuda(), VAL, WEAK, progress=False)


def test_mixed_devices_and_the_explorer(gpu):
    with pytest.raises(CourseError, match=r"cannot take images.* on cpu .*\.to\(..\) moves"):
        WEAK(Small().cuda(), images(4), labels(4))
    with pytest.raises(CourseError, match="4 labels.* on cuda:0; given: .* on cpu"):
        WEAK(Small().cuda(), images(4).cuda(), labels(4))
    drawing = Explorer(build("lenet5").cuda()).look("image", "mine", attack="pgd10", per_class=1)
    assert "mine predicts" in drawing.figure.get_label()


def test_sweep(tmp_path, gpu, tiny):
    assert len(sweep(["tiny/*"], seeds=1, out=tmp_path, models=tmp_path, jobs=1,
                     progress=False)) == 2 and gpu.uploads
