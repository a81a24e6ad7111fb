"""What the process does once from which the children are forked: importing torch costs seconds,
forking costs milliseconds. No backward pass: its threads would not survive a fork."""

import torch

from tests.faults import jobs

torch.set_num_threads(1)
for name in jobs.METHODS:  # torch does its late imports here
    model, _, _, optim = jobs.training(name)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser = optim.make(model)
    optimiser.step()
    optimiser.load_state_dict(optimiser.state_dict())
