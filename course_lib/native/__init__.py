"""LeNet-5 and its PGD walk as one C++ kernel for the CPU (lenet.cpp); the mathematics stays in models.py and attacks.py.

`serves` says whether the kernel may take a model's place, `logits` is its forward pass as a PyTorch function with
gradients, `walk` the whole of PGD.walk. COURSE_NATIVE=0 turns the kernel off.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_void_p

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from course_lib.native.build import library

OBJECTIVES = {"ce": 0, "kl": 1, "margin": 2}


class _WalkCall(ctypes.Structure):
    _fields_ = [(w, c_void_p) for w in ("parameters", "x", "z0", "noise", "clean", "eps", "step_size", "y", "last", "first_wrong",
                                        "last_right", "n_right", "t_wrong")]
    _fields_ += [(w, c_int64) for w in ("n", "steps", "extra")]
    _fields_ += [(w, c_int32) for w in ("channels", "classes", "objective", "stop", "threads")]


class _PassCall(ctypes.Structure):
    _fields_ = [(w, c_void_p) for w in ("parameters", "x", "glogits", "logits", "gx", "gparameters", "kept")]
    _fields_ += [("n", c_int64)] + [(w, c_int32) for w in ("channels", "classes", "threads")]
