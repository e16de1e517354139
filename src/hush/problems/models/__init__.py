"""The models of the literature, as plain ``nn.Module`` objects without layers that mix examples."""

from hush.problems.models.dense import logistic, mlp

__all__ = ["logistic", "mlp"]
