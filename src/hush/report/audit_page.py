"""The page of `hush audit --page`: the scores, errors and bounds of an audit."""

from __future__ import annotations

import numpy as np

from hush.accounting.gaussian import gaussian_epsilon
from hush.accounting.guarantee import Guarantee, rounded_down, rounded_up
from hush.accounting.tradeoff import curve_of_guarantee
from hush.audit.audit import CHOOSING, Audit, Scores
from hush.audit.bounds import (
    FALSE_REFUTATIONS,
    PRINTED,
    SMALLEST_P,
    Errors,
    Verdict,
    bound_epsilon,
    bound_mu,
    count_errors,
)
from hush.report.page import Chart, Page, Section, compare_lines, render_report
from hush.report.svg import Axis, Dot, Series, draw_lines

BINS = 40
POINTS = 12  # numbers of runs at which the bound is drawn
THRESHOLDS = 100  # at most, of those whose counted errors are drawn


def render_audit(audit: Audit, method: str) -> str:
    """The whole page, about the last claim: the claimed one if there is one in addition to the proven."""
    verdict, claim = audit.verdicts[-1], audit.claims[-1]
    if verdict.refuted:
        found = f"It was right more often than the {verdict.status} ε allows: the claim does not hold."
    else:
        found = (
            f"It was not right more often than the {verdict.status} ε allows. That proves nothing: a better "
            "adversary may see more."
        )
    others = [
        f"Its {other.status} ε of {other.claimed_epsilon:.3g} is {other.verdict} with the same scores."
        for other in audit.verdicts[:-1]
    ]
    page = Page(
        title=f"{method}: {verdict.verdict}",
        findings=[
            f"{verdict.runs} runs, half of them with one example that is made to be seen, the canary. The adversary "
            f"“{verdict.adversary}” looked at what each run released and scored it. {found}",
            *others,
        ],
        sections=[
            Section(
                "figures",
                "What the adversary saw",
                "The title of a point or a bar shows its numbers.",
                (
                    _draw_scores(audit.scores),
                    _draw_curve(audit.scores, claim, verdict),
                    _draw_growth(audit.scores, claim),
                ),
            )
        ],
        command="hush audit",
        facts=[
            (f"{verdict.status} ε at δ = {rounded_up(verdict.delta)}", rounded_up(verdict.claimed_epsilon)),
            ("measured, at least (95 %)", rounded_down(verdict.epsilon_lower)),
            ("Gaussian fit, an estimate", _down(verdict.epsilon_estimate)),
            ("p against the claimed curve", _describe_p(verdict.p_value)),
            ("comparisons allowed for", str(verdict.comparisons)),
        ],
    )
    return render_report(page)


def _down(value: float) -> str:
    return rounded_down(value) if np.isfinite(value) else "∞"


def _describe_p(value: float) -> str:
    return f"{value:.2g}" if value > SMALLEST_P else f"at most {SMALLEST_P:g}"


def _draw_scores(scores: Scores) -> Chart:
    both = np.concatenate([scores.inside, scores.outside])
    finite = both[np.isfinite(both)]
    edges = np.linspace(finite.min(), max(finite.max(), finite.min() + 1e-9), BINS + 1)
    middles, width = 0.5 * (edges[1:] + edges[:-1]), float(edges[1] - edges[0])
    kinds = {"runs without the canary": scores.outside, "runs with the canary": scores.inside}
    counts = {name: np.histogram(values, edges)[0] for name, values in kinds.items()}
    series = [
        Series(
            name,
            [
                Dot(float(x), int(n), f"{name}, score near {x:.3g}: {n}")
                for x, n in zip(middles, found, strict=True)
                if n
            ],
            bar=width,
        )
        for name, found in counts.items()
    ]
    title = "The score of every run"
    svg = draw_lines(title, Axis("score: high where the canary seems to be in"), Axis("runs", holds=(0.0,)), series)
    rows = tuple((float(x), *(int(found[i]) for found in counts.values())) for i, x in enumerate(middles))
    say = "The less the two distributions overlap, the surer the adversary can be that an example was there."
    return Chart(title, svg, ("score", *counts), rows, say)


def _draw_curve(scores: Scores, claim: Guarantee, verdict: Verdict) -> Chart:
    alphas = np.concatenate([[0.0], np.geomspace(1e-3, 1.0, 60)])
    claimed, errors = curve_of_guarantee(claim).beta(alphas), scores.count_for_verdict()
    seen = _count_later(scores)
    series = []
    for confidence, name in (
        (1 - FALSE_REFUTATIONS / verdict.comparisons, "verdict's confidence (lighter)"),
        (PRINTED, f"{100 * PRINTED:g} % (darker)"),
    ):
        alpha, beta = (float(side) for side in errors.region(confidence))
        text = f"region, {name}: at most {alpha:.3g} false positives or {beta:.3g} false negatives"
        ends = [Dot(0.0, beta / 2, spread=beta / 2), Dot(alpha, beta / 2, text, beta / 2)]
        series.append(Series(f"region, {name}", ends, dots=False, look=2, width=0, area=True))
    lines = (
        (f"claimed: ε = {rounded_up(claim.epsilon)}, with its event", alphas, claimed, 7, 0),
        ("counted", seen.false_positives / seen.outside, seen.false_negatives / seen.inside, 2, 2),
    )
    rows: list[tuple[str, float, float]] = []
    for name, across, up, look, dash in lines:
        every = -(-len(across) // THRESHOLDS)
        found = [(float(a), float(b)) for a, b in zip(across[::every], up[::every], strict=True)]
        points = [Dot(a, b, f"{name}: {a:.3g} false positives, {b:.3g} false negatives") for a, b in found]
        series.append(Series(name, points, dots=False, look=look, dash=dash))
        rows += [(name, *point) for point in found]
    title = "Errors that it made, and errors that were claimed"
    say = (
        "A release with the claimed curve forces every adversary to make errors on or above it. Dotted: what was "
        "counted at every threshold. Shaded: where the true errors lie at the one threshold that was fixed "
        "beforehand. The claim is refuted where the whole lighter region lies below the curve; that takes "
        f"{100 * (1 - FALSE_REFUTATIONS):g} % after allowing for every comparison."
    )
    accused = Axis("false positives: accused, and was not there", holds=(0.0, 1.0))
    svg = draw_lines(title, accused, Axis("false negatives: missed", holds=(0.0, 1.0)), series)
    return Chart(title, svg, ("line", "false positives", "false negatives"), tuple(rows), say)


def _count_later(scores: Scores) -> Errors:
    """The errors at every threshold, of the scores that did not choose one."""
    inside, outside = (values[len(values) // CHOOSING :] for values in (scores.inside, scores.outside))
    return count_errors(inside, outside, np.unique(np.concatenate([[-np.inf], inside, outside])))


def _draw_growth(scores: Scores, claim: Guarantee) -> Chart:
    most = min(len(scores.inside), len(scores.outside))
    counts = np.unique(np.linspace(max(CHOOSING, most // POINTS), most, POINTS).astype(int))
    parts = [Scores(scores.inside[:count], scores.outside[:count]) for count in counts]
    lines = {
        "at least (95 %), whatever the mechanism": [
            float(bound_epsilon(part.count_for_bound(claim.delta), claim.delta, PRINTED)) for part in parts
        ],
        "at least (95 %), if its curve is a Gaussian's": [
            gaussian_epsilon(claim.delta, float(bound_mu(part.count_for_verdict(), PRINTED))) for part in parts
        ],
        "claimed": [claim.epsilon] * len(parts),
    }
    title = "The bound as runs are added"
    say = (
        "However well the adversary sees, few runs show little: even without one error n runs of either kind bound ε "
        "by about ln(n/3.7). A bound far below the claim is no sign of more privacy."
    )
    across = ("runs", Axis("runs, each with one canary or none"))
    runs, up = (2 * counts).tolist(), Axis("ε, no unit", holds=(0.0,))
    return compare_lines(title, across, up, runs, lines, say=say, looks=(2, 1, 7), dashes=(0, 1, 0), dots=True)
