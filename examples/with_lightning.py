"""Train a LightningModule with a LightningDataModule privately, in your own loop.

Lightning's Trainer computes one gradient per batch, outside the privacy boundary, so it is not used for training. The
module is unchanged and can be used for prediction afterwards. The loss is private: the loop does not log it.
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import hush


class Digits(lightning.LightningDataModule):
    def setup(self, stage=None):
        images, labels = load_digits(return_X_y=True)
        self.train = TensorDataset(torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels))

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=64, shuffle=True)


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = torch.nn.Linear(64, 10)

    def forward(self, x):
        return self.network(x)

    def losses(self, batch):  # one loss per example; training_step would average them
        return cross_entropy(self(batch[0]), batch[1], reduction="none")


data, model = Digits(), Classifier()
data.setup()
plan = hush.make_plan("dp-sgd", examples=len(data.train), counted=True, batch_size=256, epochs=4, epsilon=3, lr=1.0)
run = plan.start(model, lambda model, batch: model.losses(batch), data.train_dataloader())
for batch in run.batches():
    run.step(batch)
print(run.guarantee)
print(run.release("runs/with_lightning"))
