"""What the page says in the same words wherever it says it: by what two neighbouring datasets differ in, by the part
of a unit that is protected, and by status."""

from __future__ import annotations

OTHERWISE = {
    "add-remove": "if that {unit} were not in the data",
    "zero-out": "if that {unit} counted for nothing",
    "replace": "if that {unit} had any other value",
    "features": "if that {unit} had any other features",
    "labels": "if that {unit} had any other label",
}
QUESTION = {
    "add-remove": "it is in the data",
    "zero-out": "it was used",
    "replace": "it has the first value",
    "features": "it has the first set of features",
    "labels": "it has the first label",
}
OTHERS = {
    "add-remove": "those not in the data",
    "zero-out": "those not used",
    "replace": "those with the second value",
    "features": "those with the second set of features",
    "labels": "those with the second label",
}
CASES = {
    "add-remove": "whether one given {unit} is in the training data or not. Anything else about it (say, a "
    "diagnosis) that the files could tell only because it is in the data is limited by the last two lines of section 3",
    "zero-out": "whether one given {unit} was used or counted for nothing. Anything else about it (say, a "
    "diagnosis) that the files could tell only because it was used is limited by the last two lines of section 3",
    "replace": "which of two possible values one given {unit} has, in all or in one entry such as a diagnosis",
    "features": "which of two possible sets of features (all that the model looks at) one given {unit} has, in all or "
    "in one entry such as an age. Not its label, which the model is to predict, and not whether it is in the data",
    "labels": "which of two possible labels (what the model is to predict, say a diagnosis) one given {unit} has. Not "
    "its features, which the model looks at, and not whether it is in the data",
}
ALARM = {
    "add-remove": "to accuse is to say “in the data”, a false alarm to say so where it is not, a miss to say “not in "
    "the data” where it is",
    "zero-out": "to accuse is to say “used”, a false alarm to say so where it was not, a miss to say “not used” where "
    "it was",
    "replace": "to accuse is to say “the first value”, a false alarm to say so where it is the second, a miss to say "
    "“the second” where it is the first",
    "features": "to accuse is to say “the first set of features”, a false alarm to say so where it is the second, a "
    "miss to say “the second” where it is the first",
    "labels": "to accuse is to say “the first label”, a false alarm to say so where it is the second, a miss to say "
    "“the second” where it is the first",
}
HALF = {
    "features": (
        "Warning: labels are not protected",
        "Only the features, what the model looks at, are protected. The labels, what it is to predict, and who is in "
        "the data, were taken to be public: the released files may reveal them outright. If they are not public, do "
        "not pass the files on.",
    ),
    "labels": (
        "Warning: features are not protected",
        "Only the labels, what the model is to predict, are protected. All other entries, and who is in the data, were "
        "taken to be public: the released files may reveal them outright. If they are not public, do not pass the "
        "files on.",
    ),
}
WHOSE = {"example": "", "features": "the features of ", "labels": "the labels of "}
CAPTION = "(on the HTML page) shows all tests: none lies below the solid line; those on the dashed line merely guess."
WARNINGS = {
    "claimed": (
        "Warning: not a guarantee",
        "A publication claims a limit on what this model can reveal, and no proof of that claim is known. It must not "
        "be relied on: treat the released files as if they could reveal any {unit} of the training data.",
    ),
    "refuted": (
        "Warning: the claim is refuted",
        "A limit on what this model can reveal was claimed, and an audit measured that it does not hold. Treat the "
        "released files as if they could reveal any {unit} of the training data.",
    ),
    "none": (
        "Warning: no protection",
        "Nothing limits what this model can reveal. Treat the released files as if they could reveal any {unit} of the "
        "training data.",
    ),
}
NO_LETTERS = (
    "(epsilon) is the number by which such a limit is stated: the smaller it is, the less the result depends on one "
    "unit. Here no value of it is proven.",
    "(delta) is a probability that may come on top of such a limit. Here no value of it is proven.",
)
NO_LIMIT = (
    "No limit on what an attacker can find out is known, so no figures are given. The released files should reach only "
    "those who may see the training data."
)
