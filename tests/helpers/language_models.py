"""Small models of transformers with random weights, a batch for each, and its losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

WORDS, LENGTH, CLASSES = 100, 16, 2


class Encoded(nn.Module):
    """The encoder of T5 with a head on the mean over its positions."""

    def __init__(self, encoder, width):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, CLASSES)
        self.config = encoder.config

    def forward(self, input_ids, attention_mask):
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[:, :, None].to(hidden.dtype)
        logits = self.head((hidden * mask).sum(1) / mask.sum(1).clamp(min=1))
        return type("Output", (), {"logits": logits})


def make(name, *, width=32, layers=1, words=WORDS, length=LENGTH, patch=8, **options):
    """A model of this family; ``options`` go to its configuration."""
    import transformers as t

    torch.manual_seed(0)
    wide, heads = 4 * width, 4
    usual = {"vocab_size": words, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    usual |= {"intermediate_size": wide}
    decoder = usual | {"num_key_value_heads": 2, "pad_token_id": 0}
    gpt = {"vocab_size": words, "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": length}
    gpt |= {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    distil = {"vocab_size": words, "dim": width, "n_layers": layers, "n_heads": heads, "hidden_dim": wide}
    t5 = {"vocab_size": words, "d_model": width, "d_kv": width // heads, "d_ff": wide, "num_layers": layers}
    picture = {key: value for key, value in usual.items() if key != "vocab_size"} | {"image_size": 32}
    if name == "BERT":
        return t.BertForSequenceClassification(t.BertConfig(**usual | options))
    if name == "RoBERTa":
        own = {"max_position_embeddings": length + 2}
        return t.RobertaForSequenceClassification(t.RobertaConfig(**usual | own | options))
    if name == "DistilBERT":
        return t.DistilBertForSequenceClassification(t.DistilBertConfig(**distil | options))
    if name == "GPT-2":
        return t.GPT2ForSequenceClassification(t.GPT2Config(**gpt | options))
    if name == "Llama":
        return t.LlamaForSequenceClassification(t.LlamaConfig(**decoder | options))
    if name == "Qwen2":
        return t.Qwen2ForSequenceClassification(t.Qwen2Config(**decoder | options))
    if name == "T5 encoder":
        return Encoded(t.T5EncoderModel(t.T5Config(**t5 | {"num_heads": heads} | options)), width)
    if name == "ViT":
        return t.ViTForImageClassification(t.ViTConfig(**picture | {"patch_size": patch} | options))
    raise KeyError(name)


TARGETS = {
    "BERT": ["query", "value"],
    "RoBERTa": ["query", "value"],
    "DistilBERT": ["q_lin", "v_lin"],
    "GPT-2": ["c_attn"],
    "Llama": ["q_proj", "v_proj"],
    "Qwen2": ["q_proj", "v_proj"],
    "T5 encoder": ["q", "v"],
    "ViT": ["q_proj", "v_proj"],
}
"""The families, and the layers that LoRA adapts in each."""
HEADS = ("classifier", "pre_classifier", "score", "head")


def adapt(name, model):
    """The model with LoRA on its attention; its head is trained too."""
    from peft import LoraConfig, get_peft_model

    heads = [child for child, _ in model.named_children() if child in HEADS]
    config = LoraConfig(
        r=8, target_modules=TARGETS[name], modules_to_save=heads, lora_dropout=0.1, fan_in_fan_out=name == "GPT-2"
    )
    return get_peft_model(model, config)


def freeze(model):
    """The model with its head as the only part that is trained."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(any(part in HEADS for part in name.split(".")))
    return model


def batch(name, n, *, words=WORDS, length=LENGTH, padded=True):
    """Tokens, their mask and labels; or pictures and labels."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (n,), generator=generator)
    if name == "ViT":
        return torch.randn(n, 3, 32, 32, generator=generator), labels
    tokens = torch.randint(2, words, (n, length), generator=generator)
    lengths = torch.randint(length // 4, length + 1, (n,), generator=generator)
    mask = (torch.arange(length) < lengths[:, None]).long() if padded else torch.ones_like(tokens)
    return tokens * mask, mask, labels


def logits_of(model, content):
    """What the model says of a batch."""
    *given, _ = content
    out = model(*given) if len(given) == 1 else model(input_ids=given[0], attention_mask=given[1])
    return out.logits


def losses(model, content):
    """Cross-entropy of each example."""
    return F.cross_entropy(logits_of(model, content), content[-1], reduction="none")
