"""A plan: the mechanism that a user makes, calibrates to (ε, δ), and starts on data.

Nothing is a plan that has no proof: it is refused when it is made.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Any

from dp_accounting import dp_event
from torch import nn
from torch.utils.data import DataLoader

from hush import validate
from hush.beside import name_all
from hush.claims import account_steps, check_claims, find_event, find_sigma
from hush.errors import BadInput, Refused
from hush.gradients import average_rows
from hush.identity import NoIdentity
from hush.loading import collates_by_itself, describe_replaced
from hush.mechanism import Mechanism
from hush.named import Losses, trainable
from hush.number_types import check_number_types
from hush.privacy import accounting
from hush.privacy.guarantee import Guarantee, rounded_up
from hush.privacy.scale import SHARE
from hush.randomness import Secret
from hush.rules.torch_optim import check_schedule
from hush.run import Run, count_coordinates
from hush.source import Source, as_source, check_parts, check_rows, is_drawn_again
from hush.stepping import MICROBATCH, Ranks
from hush.units import Units

LEAST = 0.9  # of the declared number of examples: with fewer, batches are much smaller than the plan divides by
COLLATED = (
    "the collate function makes an example's row from that example alone, and padding by the other rows of a batch "
    "changes nothing in its loss"
)
DRAWN = "what the dataset draws at random for an example is unpredictable, and drawn for each example by itself"


@dataclass(frozen=True)
class Plan(Mechanism):
    """Everything that decides the guarantee, and nothing that depends on the data."""

    def check_proof(self) -> None:
        """Refuse what has no proven guarantee, and no claimed one that was accepted."""
        check_claims(self)

    def event(self, steps: int | None = None, *, start: int = 0) -> Any:
        """The privacy event of the first ``steps`` steps (all by default), or of those of them from ``start`` on;
        refused where there is no proof."""
        return find_event(self, steps, start=start)

    def claims(self, steps: int | None = None) -> tuple[Guarantee, ...]:
        """Every ε there is for the first ``steps`` steps, each with its status; the proven one first."""
        return account_steps(self.with_rounding(), steps)

    def guarantee(self, steps: int | None = None) -> Guarantee:
        """The proven guarantee; a claimed one (labelled so) only where that was accepted."""
        return self.claims(steps)[0]

    def calibrated(self, epsilon: float, delta: float | None = None) -> Plan:
        """The same plan with the smallest σ whose ε, by the first of its claims and with all that is released beside
        training, does not exceed ``epsilon``."""
        validate.positive(epsilon=epsilon)
        if not self.private:
            raise Refused(
                f"method '{self.method}' adds no noise and cannot reach an ε: use dp-sgd or another private one"
            )
        base = dataclasses.replace(self, delta=self.delta if delta is None else delta)
        base._check_left(epsilon)
        return dataclasses.replace(base, sigma=find_sigma(base, epsilon))

    def _check_left(self, epsilon: float) -> None:
        """Refuse an ε that the releases beside training use up alone."""
        left = self.delta_left()
        if not self.beside:
            return
        if left <= 0:
            raise Refused(f"{name_all(self.beside)} lose all of δ = {self.delta:g}: give a larger δ, or leave them out")
        event = dp_event.ComposedDpEvent([release.event for release in self.beside])
        kind = accounting.default_accountant(event, self.neighbours)
        spent = accounting.epsilon(event, left, adjacency=self.neighbours, accountant=kind)
        if spent >= epsilon:
            raise Refused(
                f"nothing is left of ε = {epsilon:g} for training: {name_all(self.beside)} alone cost "
                f"ε = {rounded_up(spent)} at δ = {self.delta:g}; give them less, or raise ε"
            )

    def start(
        self,
        model: nn.Module,
        losses: Losses,
        data: Any,
        *,
        secret: Secret | int | None = None,
        unit: Any = None,
        rows_per_unit: int | None = None,
        microbatch: int = MICROBATCH,
        ranks: Ranks | None = None,
        noise_shards: bool = False,
    ) -> Run:
        """A run of this plan. ``secret`` is from the operating system unless a reproduction gives a seed; one that is
        given is assumed to be used for no other run, and the guarantee says so.

        ``data`` is a tensor or numpy array, a tuple of them, a map-style Dataset, or a DataLoader: of that, dataset,
        collate function, workers and pinning are used, and its batches replaced by those that the plan draws.

        ``unit`` is for a plan that was made with a unit (``make_plan(unit="patient_id")``): whose each row is, as one
        hashable for each. All rows of one value are one example, and at most ``rows_per_unit`` of them (8 by default)
        are averaged before clipping (:mod:`hush.units`). ``microbatch`` counts rows.

        ``ranks`` are the processes that share the run (`hush.join_ranks`). With ``noise_shards`` each of them makes its
        own slice of the noise and keeps the state of that slice alone, and they send each other the results.
        Checkpoints do without that state, and a run that goes on makes it anew (:mod:`hush.noising`).
        """
        validate.whole(microbatch=microbatch)
        self._check_owners(unit, rows_per_unit)
        rows = as_source(data)
        source = rows if unit is None else Units.of(rows, unit, rows_per_unit)
        self._check_examples(len(source))
        if isinstance(data, (DataLoader, Source)):
            check_rows(rows)
        if self.private:
            check_parts(rows)
        check_number_types(model, losses, rows)
        plan = dataclasses.replace(self, rows_per_unit=source.most) if isinstance(source, Units) else self
        if secret is not None and not isinstance(secret, Secret):
            secret = Secret.from_seed(int(secret), plan._known_for_a_seed(model))
        with_tails = plan.with_tails(count_coordinates(plan, model, source))
        if isinstance(data, DataLoader):
            logging.getLogger("hush").warning(describe_replaced(data))
            with_tails = with_tails.assuming(COLLATED if collates_by_itself(data) else "")
        elif is_drawn_again(rows):
            with_tails = with_tails.assuming(DRAWN)
        if isinstance(source, Units):
            losses, microbatch = average_rows(losses, source.most), max(1, microbatch // source.most)
        run = Run(
            with_tails,
            model,
            losses,
            source,
            Secret.fresh() if secret is None else secret.given(),
            microbatch=microbatch,
            ranks=ranks,
            noise_shards=noise_shards,
        )
        check_schedule(run.state()["rule"], trainable(model), plan.steps)
        return run

    def with_tails(self, coordinates: int) -> Plan:
        """The plan with what noise that ends takes of δ for so many coordinates (`hush.privacy.scale`) in each of the
        channels, of which none has more; refused where that is too much."""
        if not self.has_tails:
            return self
        ends = self.find_tails(coordinates)
        taken = ends.cost()
        if taken > SHARE * self.delta and self.trials is not None:
            raise Refused(
                "so many numbers get noise that the end of its tails costs more of δ than can be counted for each of "
                "many trials: give a larger δ, or train once"
            )
        if taken > SHARE * self.delta:
            taken = ends.check(self.delta, self.guarantee().epsilon)
        return dataclasses.replace(self, tails=taken)

    def _check_examples(self, population: int) -> None:
        """Refuse data of another size than the plan's. Where presence is hidden the number was declared, and the data
        may hold one more, or a tenth less; a refusal is for the eyes of whoever has the data."""
        planned, hidden = self.sampler.examples, self.neighbours == "add-remove"
        if population == planned or (hidden and LEAST * planned <= population <= planned + 1):
            return
        found = ("more" if population > planned else "far fewer") if hidden else population
        whose = "examples" if self.unit == "example" else f"units ({self.unit})"
        raise BadInput(
            f"the plan was made for {planned} {whose} and the data has {found}: make the plan for the number there is"
        )

    def _check_owners(self, unit: Any, rows_per_unit: int | None) -> None:
        if unit is None and self.unit != "example":
            raise BadInput(
                f"the plan is for the unit '{self.unit}', and whose each row is was not said: start it with unit=…, "
                "one value for each row"
            )
        if unit is not None and self.unit == "example":
            raise BadInput(
                "the plan protects single rows, and units were given: make it for their number and with the unit's "
                "name, as make_plan(examples=…, unit='patient_id', …)"
            )
        if unit is None and rows_per_unit is not None:
            raise BadInput("rows_per_unit is for data whose rows have a unit: give unit=… too")

    def _known_for_a_seed(self, model: nn.Module) -> str:
        try:
            return self.fingerprint(trainable(model))
        except NoIdentity as error:
            raise Refused(
                f"this plan takes no secret seed, for another plan could get the same noise from it: {error}; "
                "or leave the seed out"
            ) from error
