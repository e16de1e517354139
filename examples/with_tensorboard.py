"""Log a private run to TensorBoard: only values that are public or released anyway (the spent ε, the weights).

ε does not cover the training loss, batch sizes and gradient norms (`record.private`): do not write them to logs that
others can see.
"""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

import hush

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
model = torch.nn.Linear(64, 10)


def losses(model, batch):  # one loss per example
    return cross_entropy(model(batch[0]), batch[1], reduction="none")


plan = hush.make_plan(
    "dp-sgd",
    examples=len(x),
    counted=True,
    batch_size=256,
    epochs=4,
    epsilon=3,
    optimizer=lambda params: torch.optim.AdamW(params, lr=0.02),
    scheduler=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=plan.steps),  # in steps
)
run = plan.start(model, losses, DataLoader(TensorDataset(x, y), batch_size=256))
with SummaryWriter("logs") as log:
    for batch in run.batches():
        run.step(batch)
        log.add_scalar("epsilon of the steps so far", plan.guarantee(run.next).epsilon, run.next)
        log.add_histogram("weights", model.weight, run.next)
print(run.guarantee)
print(run.release("runs/with_tensorboard"))
