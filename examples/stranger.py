"""A minimal script with `Run`: `python stranger.py 200`.

The result is the same with and without interruptions.
"""

import sys

import torch
from holdfast_worker import Run
from torch.utils.data import DataLoader, TensorDataset

run = Run.start()
x, y = torch.rand(1000, 8), torch.rand(1000, 1)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
model = run.wrap(model)
optimizer = torch.optim.Adam(model.parameters())
run.track(model=model, optimizer=optimizer)

loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
for inputs, wanted in run.steps(loader, total=int(sys.argv[1])):
    loss = torch.nn.functional.mse_loss(model(inputs), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.log(loss=loss)

print(f"done after {run.step} steps")
