"""The privacy statement for a data-protection officer: what a privacy card means, without mathematics.

The page is a function of the card's JSON and three more facts (dataset, date, digests of the released files), so it
can be rendered again from any card. This package does not import torch.
"""
