"""What the report of a store says above its tables and figures."""

from __future__ import annotations

HEADINGS = {
    "utility": (
        "Utility against ε",
        "Mean over seeds of the best setting; bars are one standard deviation. A dashed line with hollow marks is a "
        "claimed ε, a dotted one with crosses a refuted one: neither is a guarantee.",
    ),
    "heat-batch": (
        "Learning rate × batch size",
        "Mean over seeds of the best other settings in each cell. The frame with a star is the best cell by the part "
        "that chooses; hatched cells have diverged or failed; ! marks a cell some of whose runs did. For a loss its "
        "log₁₀ is shown, and darker is less.",
    ),
    "heat-epochs": ("Learning rate × epochs", "As above, over the number of epochs."),
    "curves": ("Accuracy and loss over epochs", "On the test part, of the best run of each method."),
    "spending": (
        "ε over epochs",
        "What the best run of each method had spent after each epoch, where its record says so.",
    ),
    "confusion": (
        "Confusion matrices",
        "Of the best run of each group: how many of each true class were taken for which. Darker is a larger share of "
        "the true class.",
    ),
    "seeds": ("Seed by seed", "The test figure of every seed of the best setting; the bar is their mean."),
    "settings": ("Best learning rate and epochs by batch size", "The best setting at each batch size."),
    "times": (
        "Training and inference time",
        "Seconds as recorded, on whatever machine a run was on; the bar is the mean.",
    ),
    "sanitized": (
        "Noisy activations and labels",
        "Methods that protect features or labels alone. What is claimed of sanitize was refuted by an audit.",
    ),
    "noise": (
        "Correlated noise",
        "The noise that adds up in a weight over steps, C and C⁻¹. Darker is larger; signs are in the points' texts.",
    ),
}
COLUMNS = ("problem", "method", "ε", "audited lower bound", "best run", "best setting, mean ± spread", "runs")
SAY = (
    "Best run and best setting are chosen by the validation part, and their test figures are shown. The ε is that of "
    "one run alone; below each best run stands what having chosen it has cost. A proven ε follows from accounting, a "
    "claimed one is a paper's formula without a known proof, a refuted one was measured to be wrong."
)
PUBLIC = (
    "Figures of validation and test rows are exact, and no ε covers them: hand this page on only if those rows are "
    "public."
)
