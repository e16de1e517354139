"""Per-example gradients: exact norms and weighted sums, at nearly the cost of one ordinary gradient.

`hush.per_example.gradients.per_example_gradients` runs the model once forward and once backward. The engine only
changes the speed: "functional" (torch.func, the reference) and "book-keeping" (Bu et al. 2022, "Differentially private
optimization on large model at small cost") give the same result.

In scope: gradients, their norms and weighted sums, with bounds on their rounding (ARITHMETIC.md), and checks that
examples do not influence each other. Clipping them is in `hush.clipping`, adding noise in `hush.noise_addition`.
"""
