"""What a model answers to images: its logits or predictions, or a CourseError in plain words."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.errors import CourseError, resolve


def predict(model: nn.Module, x: Tensor, y: Tensor | None = None) -> Tensor:
    """The predicted classes, in eval mode."""
    with torch.no_grad(), frozen(model):
        logits = logits_of(model, check_images(x, y), y)
    if broken := int(logits.isnan().any(1).sum()):
        raise CourseError(f"{type(model).__name__} gives NaN for {broken} of {len(x)} images; its "
                          "weights may hold NaN.")
    return logits.argmax(1)


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """The model in eval mode with fixed parameters; afterwards every mode and flag is as before."""
    if not isinstance(model, nn.Module):
        raise CourseError(f"The model is {model!r:.100}; give a network, such as load_model(name).")
    with resolve("course_lib.machine:changed")([
            *((m, "training", False) for m in model.modules()),
            *((p, "requires_grad", False) for p in model.parameters())]):
        yield model


def logits_of(model: nn.Module, x: Tensor, y: Tensor | None = None) -> Tensor:
    """f(x), or a CourseError where images or labels do not fit the model."""
    try:
        logits = model(x)
    except (RuntimeError, ValueError, IndexError) as e:
        raise resolve("course_lib.judge.kinds:of_forward")(e, model, x) from None
    top = int(y.max()) if y is not None and resolve("course_lib.machine:unseen")(y) else -1
    if not isinstance(logits, Tensor) or logits.ndim != 2 or top >= logits.shape[1]:
        raise resolve("course_lib.judge.kinds:of_logits")(model, logits, top)
    return logits


def check_fit(model: nn.Module, split: Any) -> torch.device:
    """The model's device; a CourseError unless the model fits the split's images and classes."""
    if not len(split):
        raise CourseError("The split is empty; take at least one image of each class.")
    device, classes = next(model.parameters(), torch.empty(0)).device, len(split.classes)
    with torch.no_grad(), frozen(model):
        outputs = logits_of(model, check_images(split.images([0]).to(device))).shape[1]
    if outputs != classes:
        raise CourseError(f"{type(model).__name__} has {outputs} outputs, but the data has "
                          f"{classes} classes. Build it with classes={classes}.")
    return device


def check_images(x: Tensor, y: Tensor | None = None, *, stored: bool = False) -> Tensor:
    """x, detached; a CourseError unless x holds images in [0, 1] and y one label per image. Images
    that are `stored` may be bytes, too."""
    kinds = (torch.uint8, torch.float32, torch.float64)
    fits = isinstance(x, Tensor) and not x.is_meta and x.ndim > 1 and (
        x.dtype in kinds if stored else x.is_floating_point() and x.element_size() > 1)
    if fits and x.is_floating_point() and resolve("course_lib.machine:unseen")(x):
        fits = bool(x.min() >= 0 and x.max() <= 1)  # which NaN fails
    if not fits:
        raise resolve("course_lib.judge.kinds:of_images")(x, stored=stored)
    if y is not None and (not isinstance(y, Tensor) or y.dtype != torch.int64
                          or y.shape != x.shape[:1] or y.device != x.device
                          or (resolve("course_lib.machine:unseen")(y) and (y < 0).any())):
        raise resolve("course_lib.judge.kinds:of_images")(x, y)
    return x.detach()
