"""The data-protection officer's page: what a privacy card means, for somebody who knows no mathematics.

Everything is said from the card's JSON and three more facts (dataset, date, digests of the released files), so the page
can be made again wherever a card is. No torch in here.
"""
