"""Per-example gradients: their exact norms and weighted sums, at close to the price of one ordinary gradient.

``record`` runs the model once forward and once backward and returns a tape. The engine that computes it is a matter of
speed alone: "functional" (torch.func, the reference) and "book-keeping" (Bu et al. 2022, "Differentially private
optimization on large model at small cost") give the same tape.
"""
