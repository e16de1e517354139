"""LoRA on a HuggingFace model: the adapters are trained privately, the other weights are frozen.

The model is small and has random weights; `from_pretrained` works in the same way. Every text is padded to one public
length, so that no row depends on the others of its batch. Only the release is saved; the loss stays private.
"""

import torch
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

import hush

LENGTH, N = 12, 400  # public
torch.manual_seed(0)
texts = [torch.randint(2, 50, (int(torch.randint(4, LENGTH, ())),)) for _ in range(N)]
rows = [{"ids": ids, "label": int(ids[0] > 25)} for ids in texts]


def collate(items):
    ids = torch.zeros(len(items), LENGTH, dtype=torch.int64)
    for row, item in zip(ids, items, strict=True):
        row[: len(item["ids"])] = item["ids"]
    labels = torch.tensor([item["label"] for item in items])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def losses(model, batch):  # one loss per example; the model's own `loss` is a mean over the batch
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return cross_entropy(logits, batch["labels"], reduction="none")


small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
base = BertForSequenceClassification(BertConfig(vocab_size=50, attn_implementation="eager", **small))
model = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"]))
plan = hush.make_plan(
    "dp-sgd",
    examples=N,
    batch_size=64,
    epochs=2,
    epsilon=8,
    optimizer=lambda params: torch.optim.AdamW(params, lr=5e-3),
)
run = plan.start(model, losses, DataLoader(rows, batch_size=16, collate_fn=collate))
for batch in run.batches():
    run.step(batch)
print(run.guarantee)
print(run.release("runs/with_peft"))
