"""How it was trained: in words from the plan's parts, then as the numbers that an expert checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hush.officer.blocks import Block, Paragraph, Section, Table
from hush.officer.reading import Read
from hush.privacy.guarantee import ACCOUNTING, rounded_up

STATUS = {
    "proven": "proven",
    "claimed": "claimed, not proven: not a guarantee",
    "refuted": "refuted: does not hold",
    "none": "no protection",
}

LAYER = "What one layer of the model makes of the features of each of them was cut down to a fixed largest size, and "
RELEASED = {  # by the kind of query: what is released in place of changes to the model
    "Released": (
        f"{LAYER}random noise was added to it. The layers before that one had not seen these data, and those behind it "
        "were trained on what had noise, and on the labels as they are.",
    ),
    "Hybrid": (
        f"{LAYER}random noise was added to it; the layers behind that one were trained on it, and on the labels as "
        "they are. How each example would change the layers before it was cut down to a fixed largest size and added "
        "up, and random noise was added to the sum.",
    ),
    "Published": (
        f"{LAYER}random noise was added to it. The layers before that one were trained too, without any noise.",
    ),
    "RandomisedLabels": (
        "Each label was replaced, once, by an answer that is drawn at random and is often the label itself. The model "
        "was trained on these answers, and on the features as they are.",
    ),
}


def tell_method(read: Read) -> Section:
    """The mechanism in words, then the numbers."""
    words = Paragraph(" ".join((*_steps(read), *_influence(read), *_noise(read), *_beside(read))))
    lead = Paragraph("For an expert, the same as numbers; the complete plan is in privacy.json:")
    return Section("How was it done?", (words, lead, Table(("what", "value"), _numbers(read))))


def tell_claims(read: Read) -> tuple[Section, ...]:
    """Every ε that is said about the method, where there are several or none that holds."""
    if read.proven and len(read.claims) < 2:
        return ()
    rows = tuple((_epsilon(claim.epsilon), STATUS[claim.status], claim.reason or "–") for claim in read.claims)
    text = "Only a value that is proven limits what an attacker can find out. The others are listed to be complete."
    blocks: tuple[Block, ...] = (Paragraph(text), Table(("ε", "status", "reason"), rows, "figures"))
    return (Section("What is said about this method", blocks),)


def _epsilon(value: float) -> str:
    shown = rounded_up(value)
    return "none" if shown == "∞" else shown


def _steps(read: Read) -> tuple[str, ...]:
    steps, taken = read.card["steps"], read.card["steps_taken"]
    said = f"The training took {steps} steps."
    if taken != steps:
        said = f"The training was planned as {steps} steps; {taken} of them were taken, and all are counted."
    return (said, f"At each step {_draw(read.part('sampler'), read.unit)}.")


def _draw(sampler: Mapping[str, Any], unit: str) -> str:
    match sampler.get("kind"):
        case "Poisson":
            return f"a random selection was drawn, every {unit} with a chance of {100 * sampler['rate']:.3g} in 100"
        case "FixedSize":
            return f"a random selection of {sampler['batch_size']} {unit}s was drawn"
        case "Shuffled":
            return f"{sampler['batch_size']} {unit}s were taken, in an order that was shuffled anew for every pass"
        case "Partitioned":
            return f"{sampler['batch_size']} {unit}s were taken, in the same order in every pass"
        case "Cyclic":
            return (
                f"one of {sampler['groups']} fixed groups had its turn, and of its {unit}s a random selection was "
                f"drawn, each with a chance of {100 * sampler['rate']:.3g} in 100"
            )
        case _:
            return f"a part of the {unit}s was taken"


def _influence(read: Read) -> tuple[str, ...]:
    if read.guarantee.status == "none":
        return ("How each of them would change the model was added up, without any limit on what one could add.",)
    kind = read.part("query").get("kind")
    if kind in RELEASED:
        return RELEASED[kind]
    rows = "" if not read.whole_unit else ", averaged over its rows"
    if rows and read.rows_per_unit is not None:
        rows += f" (over {read.rows_per_unit} of them, chosen anew each time, where it has more)"
    limited = (
        f"For each of them it was computed how it would change the model{rows}, and that change was cut down to a "
    )
    if kind == "Adaptive":
        limited += "largest size, which was adjusted from step to step by counts with noise of their own"
    else:
        limited += "fixed largest size"
    if kind == "ErrorFeedback":
        limited += "; what was cut off was kept and came back in later steps"
    return (f"{limited}. Then the changes were added up.",)


def _noise(read: Read) -> tuple[str, ...]:
    if read.guarantee.status == "none":
        return ("No random noise was added.",)
    if read.part("query").get("kind") in RELEASED:
        return (f"So what one {read.unit} is like is blurred; {_how_well(read)}",)
    noise = read.part("noise")
    plain = noise.get("kind") == "Independent" and noise.get("schedule") is None
    size = ""
    if plain and read.part("query").get("kind") == "ClippedSum":
        size = f", typically {read.card['noise_std']:.3g} times as large as the most that one {read.unit} could add,"
    related = ""
    if noise.get("kind") not in (None, "Independent"):
        related = " The noise of different steps is related, so that part of it cancels as steps add up."
    return (
        f"Random noise{size} was added to the sum before it changed the model.{related}",
        f"So what one {read.unit} added is blurred; {_how_well(read)}",
    )


def _how_well(read: Read) -> str:
    return "section 3 says how well." if read.proven else "how much that hides is not proven."


def _beside(read: Read) -> tuple[str, ...]:
    """What else was released on the same data, and what happened more than once."""
    names = [str(release["name"]) for release in read.card.get("beside") or ()]
    said = [f"Also released, with its own noise: {', '.join(names)}; what is said here covers it too."] if names else []
    if read.guarantee.status == "proven" and read.guarantee.reason:
        said.append(f"{read.guarantee.reason[0].upper()}{read.guarantee.reason[1:]}.")
    return tuple(said)


def _numbers(read: Read) -> tuple[tuple[str, str], ...]:
    card, guarantee = read.card, read.guarantee
    rows = {"method": str(card["method"]), "steps planned and counted": str(card["steps"])}
    if card["steps_taken"] != card["steps"]:
        rows["steps taken"] = str(card["steps_taken"])
    if guarantee.status != "none":
        rows |= {
            "mechanism": str(card["guarantee"]["event"] or "not stated"),
            "accounted by": ACCOUNTING.get(guarantee.accountant, guarantee.accountant),
            "neighbouring data": guarantee.adjacency,
            "noise multiplier σ": f"{card['noise_multiplier']:.6g}",
            "sensitivity of the noise's correlation": f"{card['sensitivity']:.6g}",
            "noise on the sum, in clip units": f"{card['noise_std']:.6g}",
        }
    rows["divisor of the sum"] = f"{card['divisor']:g}"
    rows["versions"] = ", ".join(f"{name} {number}" for name, number in card["versions"].items())
    return tuple(rows.items())
