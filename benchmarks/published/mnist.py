"""Tables I to IV: MNIST without privacy, with DP-SGD, with DP-FTRL, and both at equal ε."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.stats import t

from published import records
from published.records import Record, epsilon, list_moves, list_percent, pick, read, spread, table, tell_values, wrap

HEAD = (
    *("model", "batch", "noise", "momentum", "initial weights", "published", "ours, mean ± deviation (seeds)"),
    *(
        "95 % interval of the mean",
        "ours − published",
        "ε published",
        "ε here",
        "training, s by the clock: ours (published)",
    ),
    "inference, s: ours for 10 000 images, CPU time (published, of how many is not said)",
)
INFERENCE = "inference.json"
SEEDS = 3  # a row is whole with so many
NEAR = 1.0  # a point: what a row may lack and still be called reproduced
PROBLEMS = (("mnist-mlp", "MLP"), ("mnist-lenet", "LeNet"))


@dataclass(frozen=True)
class Row:
    """A row of a published table: what it says, and our runs of it."""

    model: str
    noise: str
    published: str
    epsilon_published: str
    runs: Sequence[Record]
    seconds: str = "–"  # of training and of inference, in the publication
    inference: str = "–"

    @property
    def difference(self) -> float | None:
        """Our mean minus the published accuracy, in points."""
        values = list_percent(self.runs)
        return statistics.mean(values) - float(self.published.removeprefix("about ")) if values else None

    @property
    def short(self) -> bool:
        """Whether our mean is below the published accuracy by more than a point."""
        return self.difference is not None and self.difference < -NEAR

    def cells(self) -> tuple[str, ...]:
        """Its line."""
        lack = "" if self.difference is None else f"{self.difference:+.2f}".replace("-", "−")
        here = epsilon(list(self.runs)) if self.runs else ""
        return (
            *(self.model, self._list("batch_size"), self.noise, self._list("momentum"), self._list("initialisation")),
            *(self.published, spread(list(self.runs)), self._tell_interval(), lack, self.epsilon_published, here),
            f"{self._average('train_seconds')} ({self.seconds})",
            f"{self._tell_inference()} ({self.inference})",
        )

    def _list(self, name: str) -> str:
        """A setting of the runs; none of those with torch's own initial weights is named in their records."""
        known = {"initialisation": "torch's", "momentum": 0.0}
        configs = [run.get("config", {}) for run in self.runs]
        found = {c.get(name, c.get("options", {}).get(name, known.get(name))) for c in configs}
        return ", ".join(f"{one:g}" if isinstance(one, float) else f"{one}" for one in sorted(found - {None}))

    def _average(self, figure: str) -> str:
        """Mean of a time, to three figures; it was measured on one core of a machine with other work."""
        found = [run[figure] for run in self.runs if run.get(figure) is not None]
        mean = statistics.mean(found) if found else 0.0
        return "–" if not found else f"{mean:.0f}" if mean >= 100 else f"{mean:.3g}"

    def _tell_inference(self) -> str:
        """The time of its network, which was measured once."""
        path = records.RESULTS / INFERENCE
        times = json.loads(path.read_text())["cpu_seconds"] if path.exists() else {}
        found = {times.get(run["config"].get("problem")) for run in self.runs if "config" in run} - {None}
        return ", ".join(f"{seconds:.2g}" for seconds in sorted(found)) or "–"

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of our mean (Student's); None of single runs and of equal ones."""
        values = list_percent(self.runs)
        if len(values) < 2 or not (width := statistics.stdev(values)):
            return None
        low, high = t.interval(0.95, len(values) - 1, statistics.mean(values), width / math.sqrt(len(values)))
        return float(low), float(high)

    def _tell_interval(self) -> str:
        return "–" if self.interval is None else "{:.2f} to {:.2f}".format(*self.interval)

    def tell_lack(self) -> str:
        """How far below."""
        return f"{self.model} at {self.noise} is {-(self.difference or 0):.2f} points below"

    def tell_short(self) -> str:
        """The same with each seed."""
        return f"{self.tell_lack()} (seeds: {', '.join(f'{value:.2f}' for value in list_percent(self.runs))})"


def tell_agreement(rows: Sequence[Row]) -> str:
    """Which rows come out."""
    known = [row for row in rows if row.runs]
    short = [row for row in known if row.short]
    if not known:
        return "Not run yet."
    if not short:
        which = f"All {len(known)} rows" if len(known) == len(rows) else f"The {len(known)} rows that were run"
        which = "Both rows" if len(known) == len(rows) == 2 else which
        return f"{which} are within a point of the published accuracy or above it."
    found = f"{len(known) - len(short)} of {len(known)} rows are within a point of the published accuracy or above it"
    return f"{found}; {'; '.join(row.tell_short() for row in short)}."


def list_plain() -> list[Row]:
    """No privacy."""
    found, said = read("mnist-plain"), {"MLP": "about 98", "LeNet": "about 99"}
    return [Row(model, "none", said[model], "none", pick(found, problem=name)) for name, model in PROBLEMS]


TIMES = {  # training and inference, in seconds, in Tables I and II
    "mnist-mlp": {1.0: ("226.42", "0.0195"), 0.75: ("223.11", "0.0237"), 0.5: ("234.67", "0.0223")},
    "mnist-lenet": {1.0: ("228.99", "0.0289"), 0.75: ("227.91", "0.0314"), 0.5: ("253.08", "0.0229")},
}
DPSGD = {  # noise multiplier: (ε in the publication, accuracy of the MLP, of LeNet)
    1.0: ("1.68", "92.22", "93.63"),
    0.75: ("3.33", "93.17", "95.38"),
    0.5: ("13.09", "94.13", "96.61"),
}


def list_dpsgd(momentum: float) -> list[Row]:
    """Tables I and II."""
    found, rows = read("mnist-dpsgd"), []
    for place, (problem, model) in enumerate(PROBLEMS, 1):
        for sigma, said in DPSGD.items():
            runs = pick(found, problem=problem, noise_multiplier=sigma, momentum=momentum)
            rows.append(
                Row(
                    f"{model}, momentum {momentum:g}",
                    f"σ = {sigma:g}",
                    said[place],
                    said[0],
                    runs,
                    *TIMES[problem][sigma],
                )
            )
    return rows


FTRL = {  # node noise: (ε in the publication, accuracy, training and inference in seconds)
    25: ("2.65", "90.18", "107.60", "0.0293"),
    20: ("3.41", "91.27", "111.02", "0.0280"),
    12.5: ("5.84", "93.63", "107.92", "0.0291"),
    8: ("9.92", "95.21", "109.17", "0.0307"),
    4: ("23.80", "96.17", "109.17", "0.0298"),
}


def list_ftrl(spec: str = "mnist-ftrl") -> list[Row]:
    """Table III."""
    found, rows = read(spec), []
    for noise, said in FTRL.items():
        runs = pick(found, node_noise=noise, honaker=False)
        rows.append(Row("LeNet", f"node noise {noise:g}", said[1], said[0], runs, *said[2:]))
    return rows


def list_initialised() -> list[Row]:
    """Rows of Table III with the initial weights that the publication names, as far as they have been run."""
    return [row for row in list_ftrl("mnist-ftrl-initialisation") if row.runs]


VERSUS = {  # ε: (DP-SGD's σ, its accuracy, DP-FTRL's, seconds of training of both) in the publication
    3.41: ("0.872", "95.70", "91.27", "231.89", "111.02"),
    5.71: ("0.710", "96.02", "93.57", "240.03", "105.61"),
    13.14: ("0.545", "96.60", "95.55", "246.68", "109.30"),
}


def pick_versus(target: float, method: str, momentum: float) -> list[Record]:
    """The runs of Table IV at one ε."""
    return pick(read("mnist-versus"), method=method, epsilon=target, momentum=momentum)


PLAIN, READ, BEST = "", ", `nodes=read`", ", `honaker`"  # DP-FTRL on all images, by what is made of its nodes
TREES: dict[str, Callable[[float], list[Record]]] = {  # the runs of DP-FTRL at an ε of Table IV
    PLAIN: lambda target: pick(read("mnist-versus-whole"), epsilon=target, honaker=False, nodes="complete"),
    READ: lambda target: pick(read("mnist-versus-whole"), epsilon=target, honaker=False, nodes="read"),
    BEST: lambda target: pick(read("mnist-versus-whole"), epsilon=target, honaker=True),
    ", a tenth held out": lambda target: pick_versus(target, "dp-ftrl", 0.0),
}


def list_trees(kind: str = PLAIN) -> list[Row]:
    """DP-FTRL at the ε of Table IV, of one of ``TREES``; on all images by plain sums unless another is named."""
    rows = []
    for target, (_, _, published, _, seconds) in VERSUS.items():
        runs = TREES[kind](target)
        noise = f"for ε = {target:g}" + (f": node noise {runs[0]['noise_std']:.3g}" if runs else "")
        rows.append(Row(f"dp-ftrl{kind}", noise, published, f"{target:g}", runs, seconds))
    return rows


def list_versus(momentum: float) -> list[Row]:
    """Table IV: DP-SGD with this momentum."""
    rows = []
    for target, (sigma, said, _, seconds, _) in VERSUS.items():
        runs = pick_versus(target, "dp-sgd", momentum)
        noise = f"for ε = {target:g}" + (f": σ {runs[0]['noise_std']:.3g} (printed {sigma})" if runs else "")
        rows.append(Row(f"dp-sgd, momentum {momentum:g}", noise, said, f"{target:g}", runs, seconds))
    return rows


def render_plain() -> list[str]:
    """The ceiling."""
    rows = list_plain()
    return ["## MNIST without privacy", "", *wrap(tell_agreement(rows)), "", *table(HEAD, [r.cells() for r in rows])]


def render_dpsgd() -> list[str]:
    """Tables I and II."""
    rows, bare = list_dpsgd(0.9), list_dpsgd(0.0)
    return [
        "## DP-SGD on MNIST (Tables I and II)",
        "",
        *wrap(f"**{tell_agreement(rows)}** The rows without momentum are not counted in this."),
        "",
        *wrap(
            "Batch 256, 20 epochs, learning rate 0.05, clip 1.1, δ = 1e-5, a tenth held out. The publication names no "
            "momentum. Without it 4 220 steps of signal of at most 0.05 · 1.1 are too short, at every noise alike, so "
            "that its differences between noises could not come about either. ε here is a little smaller: the "
            "publication drops the last batch of an epoch, which makes its sampling rate 1/210, and prints the upper "
            "end of a numerical error; at that rate our accountant says 1.672, 3.320 and 13.08."
        ),
        "",
        *table(HEAD, [r.cells() for r in rows + bare]),
    ]


def render_ftrl() -> list[str]:
    """Table III."""
    rows = list_ftrl()
    return [
        "## DP-FTRL on MNIST (Table III)",
        "",
        *wrap(f"**{tell_agreement(rows)}**"),
        "",
        *wrap(
            "Batch 500, 10 epochs in the same order, one tree over all of them, learning rate 1, clip 1.1, δ = 1e-5, "
            "nothing held out. The noise is the published one. The published ε is by Rényi accounting; the same "
            "release is one Gaussian, whose exact ε is given here, so the published ones are larger than they "
            "need be, and safe. Both count every complete node of the tree as released; plain sums read only some of "
            "them, and charged for those alone (`nodes=read`) the same runs have ε = 2.117/2.720/4.659/7.901/18.86."
        ),
        "",
        *_tell_refused(),
        *_tell_restless(rows),
        *_tell_more_seeds(rows),
        *wrap(
            "The publication names Kaiming's and Xavier's initial weights; the rows have torch's own unless they say "
            "otherwise."
        ),
        "",
        *table(HEAD, [r.cells() for r in (*rows, *list_initialised())]),
    ]


def _tell_more_seeds(rows: Sequence[Row]) -> list[str]:
    """A row that got more seeds than the others got them after its first were seen: what those alone say."""
    told = []
    for row in rows:
        values = list_percent(row.runs)
        if len(values) > SEEDS:
            first = values[:SEEDS]
            told.append(
                f"{row.noise[:1].upper()}{row.noise[1:]} has {len(values)} seeds, as its first {SEEDS} lie "
                f"{max(first) - min(first):.1f} points apart; they alone give {tell_values(first)}, and how many more "
                "there were to be was fixed before the first of them ran."
            )
    return [line for text in told for line in [*wrap(text), ""]]


def _tell_refused() -> list[str]:
    """Runs that were refused, while there are no others of their row."""
    failed = [r for r in read("mnist-ftrl") if r["outcome"] == "failed"]
    noises = sorted({r["config"]["node_noise"] for r in failed})
    missing = [n for n in noises if not pick(read("mnist-ftrl"), node_noise=n)]
    if not missing:
        return []
    told = ", ".join(f"{n:g}" for n in missing)
    return [*wrap(f"Node noise {told} was refused when it was run: {failed[0]['reason'].partition(':')[0]}."), ""]


def _tell_restless(rows: Sequence[Row]) -> list[str]:
    """Why a row that falls short does: how far the last epochs of its runs move."""
    told = []
    for row in rows:
        if row.short:
            moves = [100 * move for move in list_moves(row.runs, "test_accuracy")]
            reached = sum(value >= float(row.published) - NEAR for value in list_percent(row.runs))
            told.append(
                f"At {row.noise} the accuracy still jumps by {statistics.mean(moves):.1f} points on average from one "
                f"epoch to the next over the last four changes, up to {max(moves):.1f}: which epoch is the last "
                f"decides what a single run reports. {reached} of {len(row.runs)} seeds are within a point of the "
                f"published figure{_tell_holds(row)}; of how many runs that is, the publication does not say. "
                f"{_tell_noise(row.runs[0])}{_tell_tried(row.runs)}"
            )
    return [line for text in told for line in [*wrap(text), ""]]


def _tell_holds(row: Row) -> str:
    """Whether the published figure lies in the 95 % interval of our mean."""
    if row.interval is None:
        return ""
    low, high = row.interval
    return f", and the interval of their mean {'holds' if low <= float(row.published) <= high else 'does not hold'} it"


def _tell_tried(runs: Sequence[Record]) -> str:
    """What a better estimate from the nodes gives."""
    tried = list_percent(pick(read("mnist-ftrl"), honaker=True, node_noise=runs[0]["config"]["node_noise"]))
    if not tried:
        return ""
    plain = list_percent(runs)
    return (
        " Tried: the estimate of lowest variance that all noisy nodes allow (`honaker`, the same ε, fresh noise) "
        f"gives {tell_values(tried)}, where their plain sums give {tell_values(plain)}, at best {max(plain):.2f}."
    )


def _tell_noise(run: Record) -> str:
    """The noise in a weight after the last step: one node's for each 1 in the number of steps."""
    config, nodes = run["config"], run["steps"].bit_count()
    deviation = math.sqrt(nodes) * run["noise_std"] * config["options"]["clip"] / config["batch_size"]
    return (
        f"The noise in every weight after the last step has a deviation of √{nodes} · {run['noise_std']:g} · "
        f"{config['options']['clip']:g} / {config['batch_size']} = {deviation:.2f}, where weights of the largest "
        "layer start within ±0.05."
    )


def render_versus() -> list[str]:
    """Table IV."""
    counted = [*list_versus(0.9), *list_trees()]
    more = [row for kind in TREES if kind for row in list_trees(kind)]
    others = [row for row in (*more, *list_versus(0.0)) if row.runs]
    return [
        "## DP-SGD against DP-FTRL at equal ε (Table IV)",
        "",
        *wrap(f"**{tell_agreement(counted)}** The rows below those six are not counted in this."),
        "",
        *wrap(
            "LeNet, batch 500, clip 1.1, δ = 1e-5; DP-SGD 20 epochs at learning rate 0.1 with a tenth held out, "
            "DP-FTRL 10 epochs at 1 with nothing held out. Here both are calibrated to the same ε. As in Tables "
            "I and II the text names no momentum, and without it DP-SGD's steps are a tenth of DP-FTRL's and too "
            "short: those rows are below. The printed σ = 0.872 does not fit its ε: 3.41 needs 0.862. DP-FTRL's "
            "noise is printed as node noise · clip / batch, another unit than DP-SGD's σ; both are in units of the "
            "clip here."
        ),
        "",
        *wrap(
            "The printed noise of DP-FTRL, 0.044/0.028/0.014, is that of a tree over all 60 000 images, and the ε "
            "for it is by Rényi orders: exactly it is about 3.15/5.30/12.26, so the published comparison gives "
            "DP-FTRL a smaller ε than DP-SGD. Its figure at 3.41 is that of Table III at node noise 20. At equal exact "
            "ε it may have less noise than was printed, and so it has here. With a tenth held out its tree has 108 "
            "batches, to which one example adds more (16.1 in the place of 15). Plain sums read only some of the "
            "nodes: `nodes=read` charges them for those alone (13.2 in the place of 15), which allows less noise at "
            "the same ε. `honaker` is the estimate of lowest variance from all noisy nodes, post-processing: it costs "
            "no ε."
        ),
        "",
        *table(HEAD, [r.cells() for r in counted + others]),
    ]
