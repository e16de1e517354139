"""Train your own model on your own tensors privately, in your own loop."""

import torch
from sklearn.datasets import load_digits
from torch.nn import Flatten, Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy

import hush

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
model = Sequential(Flatten(), Linear(64, 64), ReLU(), Linear(64, 10))


def losses(model, batch):  # one loss per example
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


public = ("the number of examples is public",)
plan = hush.make_plan(
    "dp-sgd", examples=len(x), counted=True, batch_size=256, epochs=20, epsilon=3, lr=1.0, clip=1.0, assumptions=public
)
run = plan.start(model, losses, (x, y))
for batch in run.batches():
    run.step(batch)
print(run.guarantee)
print(run.release("runs/own_model", overwrite=True))
