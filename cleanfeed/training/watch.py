"""The metrics of one step after another go in; healthy, observing or incident, and whether to step, comes out."""

from __future__ import annotations

from collections import deque
from typing import Any

from msgspec.structs import replace

from cleanfeed.training.baselines import Reading
from cleanfeed.training.detectors import NonFinite, RobustZ, further_detectors
from cleanfeed.training.metrics import SAMPLE_HIGH, SAMPLE_LOW, Health, Metrics, Trip, Verdict
from cleanfeed.training.observation import Observation
from cleanfeed.training.policy import Policy
from cleanfeed.training.returning import Returns
from cleanfeed.training.tails import HARMLESS, LOW_SIDE, Tail

UNUSUAL = 3.0
"""The onset is walked back over steps whose z lies above this."""
NEVER = -(1 << 60)
"""A step before every other."""
LED_UP = 2
"""Unusual steps before an outlier that were its beginning, so that the optimizer has taken sick steps already."""
REMEMBERED = 64
"""Steps over which the onset can be walked back."""
CONTROL = 50
"""Every so many steps a healthy one is asked as well whether the loss is back later on."""
PRIORITY = ("nonfinite", "repeat", "conjunction", "robust_z", "samples", "persistence", "sustained")
"""Which rule leads where several fire at one step; the others follow."""
OF_THIS_STEP = frozenset({"nonfinite", "samples", "ratio", "layer_ratio", "activation"})
"""Rules that say the gradient of this very step is sick, beside an outlying loss or norm."""
HINDSIGHT = frozenset(
    {"no_return", "stall", "scale_drops", "val_variance", "update_norm", "sustained", "persistence"}
)
"""Rules that speak of steps already taken."""


class Watch:
    """All detectors of a policy, and what follows from them together; a pure function of the numbers it was given.

    `update` is called once a step with the numbers all ranks agree on, before ``optimizer.step()``, so every rank
    comes to the same verdict. A lone outlier opens an observation. It becomes an incident where

    - ``nonfinite``: the loss or the norm is NaN or Inf, in the grace as well;
    - ``conjunction``: loss (or the worst micro-batch's) and log grad norm leave their bands within ``conjunction``
      steps, or one does where the other has never lain so far out;
    - ``robust_z``: one z is extreme;
    - ``samples``: one sample, or two or three together, lost far more or far less than any do in a batch;
    - ``persistence``: ``persist`` losses in a row are outliers;
    - ``repeat``: it is the third spike in 100 steps;
    - ``no_return``: ``recover_within`` steps later the loss is not back in its band;
    - or one of the further detectors fires.

    Limits of ``conjunction``, ``robust_z``, ``samples`` and ``repeat`` rise with the largest harmless outlier of the
    run (`Tail`). Outliers at most ``merge_gap`` steps apart are one event, so an incident's own outliers open no
    second one.

    Args:
        policy: Limits, windows and the actions allowed.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.seen = 0
        """Steps judged so far."""
        self.healthy_for = 0
        """Steps since an incident was last open."""
        self.unjudged = 0
        """Steps after the grace for which the loss had no baseline: the first ones of a new context."""
        self._nonfinite = NonFinite()
        self._further = further_detectors(self.policy)
        self._loss = RobustZ("loss", self.policy)
        self._leading = (self._loss, RobustZ("grad_norm", self.policy))
        """An outlier of one of these opens an observation by itself."""
        self._parts = tuple(
            RobustZ(signal, self.policy) for signal in ("worst_micro_loss", *SAMPLE_HIGH, *SAMPLE_LOW)
        )
        """Signals of a part of the batch: far out alone they are no sign, unless they are extreme."""
        self._parts_strong: dict[str, list[float]] = {}
        self._samples_told = False
        self._all = {detector.signal: detector for detector in (*self._leading, *self._parts)}
        self._asked: tuple[RobustZ, ...] = self._leading
        """Detectors that were asked of the last step: the others have no reading."""
        repeat = self.policy.repeat.within if self.policy.repeat else 0
        self._tails = {signal: Tail(max(repeat, self.policy.merge_gap)) for signal in self._all}
        self._open: Observation | None = None
        self._spikes: deque[list[int]] = deque()
        self._returns = Returns(self.policy)
        self._unusual: deque[tuple[int, float]] = deque(maxlen=REMEMBERED)
        self._sick = self._skipped = self._loss_in_row = 0

    def update(self, metrics: Metrics) -> Verdict:
        """Judge a step by its numbers.

        Args:
            metrics: Numbers of the step; steps ascend, except after `load_state_dict`.

        Returns:
            The verdict; ``accept`` is False only where the policy allows ``skip_step``.
        """
        self.seen += 1
        step, graced = metrics.step, self.seen <= self.policy.grace
        closed = self._open is not None and self._expire(step)
        overflow = not metrics.is_finite
        if overflow or self._nonfinite.in_row:
            trip = self._nonfinite.update(metrics)
            if trip is not None:
                return self._not_finite(metrics, trip, closed)
        if overflow:  # a loss scale explains it: the step is not taken, and its loss is judged as any other
            metrics = replace(metrics, grad_norm=None, finite=None)
        outliers = self._outliers(metrics)
        self.unjudged += not graced and self._loss.reading is None
        self._remember(metrics)
        risen: tuple[str, ...] = ()
        trips: list[Trip] = []
        if outliers:
            # A level below the old one is a run that learns: it ends no incident, and clears nobody of one.
            readings = [(d.signal, d.reading) for d in self._leading if d.reading is not None]
            risen = tuple(signal for signal, one in readings if one.shifted and one.z > 0.0)
            trips = self._weigh(metrics, outliers)
        trips += self._return(metrics, graced)
        for detector in self._further:
            found = detector.update(metrics)
            if found is not None:
                trips.append(found)
        if graced:
            trips = []
        opened = self._act(metrics, trips)
        sick = bool(outliers) or any(trip.rule in OF_THIS_STEP for trip in trips)
        if outliers and not graced:
            trips += _unnamed(outliers, trips)
        verdict = self._verdict(metrics, sick, trips, opened, closed, risen, overflow=overflow)
        if risen:
            self._settle()
        return verdict

    def pass_over(self, step: int) -> Verdict:
        """Return the verdict on a step without a label token: there is no loss to judge, and what is open stays so."""
        onset = self._open.onset if self._open is not None else None
        return Verdict(step=step, state=self._state, accept=True, onset_step=onset)

    @property
    def _state(self) -> Health:
        return "healthy" if self._open is None else "incident" if self._open.incident else "observing"

    # ---- one step ------------------------------------------------------------------------------------------------

    def _not_finite(self, metrics: Metrics, trip: Trip, closed: bool) -> Verdict:
        opened = self._act(metrics, [trip])
        self._unusual.append((metrics.step, float("inf")))
        return self._verdict(metrics, True, [trip], opened, closed, (), finite=False)

    def _outliers(self, metrics: Metrics) -> list[Trip]:
        """Return the outlying signals of a step."""
        found = [trip for detector in self._leading if (trip := detector.update(metrics)) is not None]
        # The loss is asked first.
        loss = self._loss.reading if found and found[0].signal == "loss" else None
        self._loss_in_row = self._loss_in_row + 1 if loss is not None else 0
        # Most loops tell no losses of samples: the detectors of these are asked once more, to hold no old reading.
        told, self._samples_told = self._samples_told, SAMPLE_HIGH[0] in metrics.extra
        parts = self._parts if told or self._samples_told else self._parts[:1]
        self._asked = (*self._leading, *parts)
        for detector in parts:
            trip = detector.update(metrics)
            if trip is None:
                continue
            goes_on = self._open is not None and not detector.place
            if found or goes_on or self._acts(trip, loss):
                found.append(trip)
            else:
                # Alone it is no sign of anything: it may only confirm a norm that leaves its band soon after.
                strength = self._strength(trip)
                if strength is not None:
                    self._parts_strong[detector.signal] = strength
                self._tails[detector.signal].add(metrics.step, trip.z or 0.0)
        return found

    def _acts(self, trip: Trip, loss: Reading | None) -> bool:
        """Return whether an outlier opens an incident by itself.

        Args:
            trip: The outlier.
            loss: That of the batch's loss, where it is an outlier: the samples have strayed with it by so much.
        """
        detector, z = self._all[trip.signal], trip.z or 0.0
        hardest = self._all[SAMPLE_HIGH[0]].reading
        if trip.signal in SAMPLE_LOW and hardest is not None and hardest.z <= -self.policy.z_observe:
            return False  # the whole batch is easier, its hardest sample too
        if detector.place and detector.reading is not None and loss is not None:
            z -= loss.z * loss.scale / detector.reading.scale
        return z >= self._act_limit(detector, trip.step)

    def _act_limit(self, detector: RobustZ, step: int) -> float:
        """Return the z from which a signal opens an incident by itself."""
        tail = self._tails[detector.signal]
        if detector.place > 1:
            # Several samples stray together so seldom that a little of it already says that their tails are heavy.
            return max(detector.acts_at, detector.acts_times * tail.at(step))
        return tail.raised(step, detector.acts_at, detector.acts_times)

    def _remember(self, metrics: Metrics) -> None:
        highest = 0.0
        for detector in self._asked:
            reading = detector.reading
            if reading is None:
                continue
            z = reading.z
            if detector.leads and z > highest:
                highest = z
            if detector.place and z < 0.0:
                continue  # an easy batch says nothing of how far a hard sample strays
            if abs(z) >= HARMLESS and z < self.policy.z_observe:
                self._tails[detector.signal].add(metrics.step, min(abs(z), LOW_SIDE))
        self._unusual.append((metrics.step, highest))
        self._returns.saw(metrics)

    def _weigh(self, metrics: Metrics, outliers: list[Trip]) -> list[Trip]:
        """Return the rules that fire on the outliers of a step."""
        policy, step = self.policy, metrics.step
        if self._open is None and self.seen > policy.grace:
            self._returns.expect(metrics, self._loss.reading, self._walked_back(step))
        event = self._event(step)
        event.last = step
        trips: list[Trip] = []
        notable = False
        loss = self._loss.reading if outliers[0].signal == "loss" else None
        for trip in outliers:
            z, tail = trip.z or 0.0, self._tails[trip.signal]
            event.peaks[trip.signal] = max(z, event.peaks.get(trip.signal, 0.0))
            strength, known = self._strength(trip), event.strong.get(trip.signal, [NEVER, 0.0])
            if strength and (strength[1] >= known[1] or step - known[0] > policy.conjunction):
                event.strong[trip.signal] = strength
                notable = notable or (self._all[trip.signal].leads and strength[1] >= 1.0)
            detector = self._all[trip.signal]
            if detector.reading is not None and self._acts(trip, loss):
                limit = self._act_limit(detector, step)
                extreme = detector.trip(metrics, detector.reading, limit)
                trips.append(self._as_act(extreme, event, tail=tail.at(step)))
        trips += self._conjunction(event, outliers)
        if self._loss_in_row >= policy.persist:
            trips.append(self._as_act(outliers[0], event, rule="persistence", in_row=self._loss_in_row))
        if notable and not event.notable:
            event.notable = True
            trips += self._repeated(event, outliers[0])
        return trips

    def _strength(self, trip: Trip) -> list[float] | None:
        """Return step and strength of an outlier, where it lies beyond every harmless step of the run."""
        z, tail, policy = trip.z or 0.0, self._tails[trip.signal], self.policy
        if z < tail.raised(trip.step, policy.z_observe, 1.0):
            return None
        return [trip.step, z / tail.raised(trip.step, policy.z_observe, policy.tail_conjunction)]

    def _beside(self, outliers: list[Trip]) -> tuple[list[float], list[float]] | None:
        """Return step and strength of loss and norm where one is an outlier of this step and the other is not.

        The other must lie beyond every harmless step too: two signals that are both so far out at once are as seldom
        as two outliers, where their geometric mean is that of two outliers.
        """
        leading = [trip for trip in outliers if self._all[trip.signal].leads]
        strength = self._strength(leading[0]) if len(leading) == 1 else None
        if strength is None:
            return None
        step = leading[0].step
        (other,) = (detector for detector in self._leading if detector.signal != leading[0].signal)
        reading, tail = other.reading, self._tails[other.signal]
        if reading is None or reading.z < max(HARMLESS, tail.at(step)):
            return None
        beside = [step, reading.z / tail.raised(step, self.policy.z_observe, self.policy.tail_conjunction)]
        return (strength, beside) if leading[0].signal == "loss" else (beside, strength)

    def _conjunction(self, event: Observation, outliers: list[Trip]) -> list[Trip]:
        """Return a trip where loss and norm are both beyond all that was harmless, and together far enough."""
        trip, strong = outliers[0], event.strong
        norm = strong.get("grad_norm")
        parts = (strong.get(one.signal, self._parts_strong.get(one.signal)) for one in self._parts)
        pairs = [
            (loss, norm) for loss in (strong.get("loss"), *parts) if loss is not None and norm is not None
        ]
        beside = self._beside(outliers)
        for loss, norm in [*pairs, beside] if beside is not None else pairs:
            near = abs(loss[0] - norm[0]) <= self.policy.conjunction
            if not near or max(loss[0], norm[0]) != trip.step or loss[1] * norm[1] < 1.0:
                continue
            event.onset = min(event.onset, int(loss[0]))
            now = {one.signal: one.reading.z for one in self._leading if one.reading is not None}
            named = {*strong, *(now if (loss, norm) == beside else ())}
            peaks = {signal: event.peaks.get(signal, now.get(signal)) for signal in sorted(named)}
            return [self._as_act(trip, event, rule="conjunction", peaks=peaks)]
        return []

    def _repeated(self, event: Observation, trip: Trip) -> list[Trip]:
        repeat = self.policy.repeat
        if repeat is None or self.seen <= self.policy.grace:
            return []
        while self._spikes and self._spikes[0][0] <= event.onset - repeat.within:
            self._spikes.popleft()
        self._spikes.append([event.onset, 0])
        if len(self._spikes) < repeat.times:
            return []
        onsets = [onset for onset, _ in self._spikes]
        event.harmed = event.harmed or any(taken for _, taken in self._spikes)
        self._spikes.clear()
        return [self._as_act(trip, event, rule="repeat", onset=onsets[0], onsets=onsets)]

    def _return(self, metrics: Metrics, graced: bool) -> list[Trip]:
        """Return a trip where the loss is not back in its band; ask of an ordinary step now and then."""
        trips = self._returns.due(metrics, incident=self._open is not None and self._open.incident)
        if self._open is None and self.seen % CONTROL == 0 and not graced:
            self._returns.expect(metrics, self._loss.reading, metrics.step, control=True)
        return trips

    # ---- the open event ------------------------------------------------------------------------------------------

    def _event(self, step: int) -> Observation:
        if self._open is None:
            onset = self._walked_back(step)
            # One step a little out of the ordinary comes by chance; several in a row led up to it.
            self._open = Observation(onset, step - 1, harmed=step - onset >= LED_UP)
        return self._open

    def _walked_back(self, step: int) -> int:
        onset = step
        for earlier, z in reversed(self._unusual):
            if earlier == onset - 1 and z > UNUSUAL:
                onset = earlier
            elif earlier < onset:
                break
        return onset

    def _expire(self, step: int) -> bool:
        """Close the event where its last outlier is long past; return whether it was an incident."""
        event = self._open
        if event is None or step - event.last <= self.policy.merge_gap:
            return False
        self._open = None
        if not event.incident:
            for signal, z in event.peaks.items():
                self._tails[signal].add(event.last, z)
        return event.incident

    def _settle(self) -> None:
        """Forget the event whose level is the baseline now."""
        self._open = None
        self._returns.forget()
        self._loss_in_row = self._sick = 0

    def _act(self, metrics: Metrics, trips: list[Trip]) -> bool:
        """Make an incident of the open event where a rule asks for one; return whether one opens."""
        if not trips:
            return False
        event = self._event(metrics.step)
        event.last = metrics.step
        event.onset = min(event.onset, *(trip.onset_step for trip in trips), metrics.step)
        self._returns.forget_controls()
        skipped_all = self.policy.allows("skip_step") and not event.harmed
        late = any(trip.rule in HINDSIGHT for trip in trips) and not (skipped_all and event.incident)
        event.harmed = event.harmed or late
        opened, event.incident = not event.incident, True
        return opened

    def _as_act(self, trip: Trip, event: Observation, rule: str = "", onset: int = -1, **detail: Any) -> Trip:
        return Trip(
            rule or trip.rule,
            trip.signal,
            trip.step,
            onset if onset >= 0 else event.onset,
            trip.value,
            trip.limit,
            trip.z,
            "act",
            {**trip.detail, **detail},
        )

    def _verdict(
        self,
        metrics: Metrics,
        sick: bool,
        trips: list[Trip],
        opened: bool,
        closed: bool,
        risen: tuple[str, ...],
        *,
        finite: bool = True,
        overflow: bool = False,
    ) -> Verdict:
        policy, event = self.policy, self._open
        incident = event is not None and event.incident
        self._sick = self._sick + 1 if sick or overflow else 0
        harmed = event is not None and event.harmed
        veto = not finite or (
            event is not None and event.incident and sick and event.skips < policy.persist and not risen
        )
        accept = not overflow and not (veto and policy.allows("skip_step"))
        self._skipped = 0 if accept else self._skipped + 1
        if event is not None and not accept:
            event.skips += not overflow
        elif event is not None and sick:
            event.harmed = True
            if event.notable and self._spikes:
                self._spikes[-1][1] = 1  # a spike the optimizer took
        ended = incident and bool(risen)
        # One that opens after many steps which overflowed has been answered already: none of them was taken.
        again = self._sick >= policy.persist and not harmed if opened else self._sick % policy.persist == 0
        self.healthy_for = 0 if incident else self.healthy_for + 1
        trips.sort(key=_rank)
        return Verdict(
            step=metrics.step,
            state=self._state,
            accept=accept,
            trips=tuple(trips),
            opened=opened,
            escalated=incident and not ended and sick and again,
            closed=closed or ended,
            onset_step=event.onset if event is not None else None,
            harmed=harmed,
            sick_in_row=self._sick,
            skipped_in_row=self._skipped,
            z={d.signal: d.reading.z for d in self._asked if d.reading is not None} if finite else {},
            level_shift=risen,
        )

    def doubt(self, step: int) -> int | None:
        """Return the first step of which an incident may still come: of an outlier, or of spikes that repeat."""
        within = self.policy.repeat.within if self.policy.repeat else 0
        onsets = self._returns.onsets
        onsets += [onset for onset, _ in self._spikes if onset > step - within]
        onsets += [self._open.onset] if self._open is not None else []
        return min(onsets, default=None)

    # ---- state ---------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return everything the verdicts to come depend on, as values JSON can hold."""
        return {
            "seen": self.seen,
            "healthy_for": self.healthy_for,
            "nonfinite": self._nonfinite.state_dict(),
            "unjudged": self.unjudged,
            "parts_strong": {signal: list(strength) for signal, strength in self._parts_strong.items()},
            "z": {signal: detector.state_dict() for signal, detector in self._all.items()},
            "further": {detector.rule: detector.state_dict() for detector in self._further},
            "tails": {signal: tail.state_dict() for signal, tail in self._tails.items()},
            "open": self._open.to_dict() if self._open is not None else None,
            "spikes": [list(spike) for spike in self._spikes],
            **self._returns.state_dict(),
            "unusual": [[step, None if z == float("inf") else z] for step, z in self._unusual],
            "counts": [self._sick, self._skipped, self._loss_in_row],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of `state_dict`."""
        self.seen, self.healthy_for = state["seen"], state["healthy_for"]
        self._nonfinite.load_state_dict(state["nonfinite"])
        self.unjudged = state["unjudged"]
        for signal, detector in self._all.items():
            detector.load_state_dict(state["z"][signal])
            self._tails[signal].load_state_dict(state["tails"][signal])
        self._parts_strong = {signal: list(strength) for signal, strength in state["parts_strong"].items()}
        self._further = further_detectors(self.policy)
        for further in self._further:
            if further.rule in state["further"]:  # else the policy has turned it on since
                further.load_state_dict(state["further"][further.rule])
        self._open = Observation(**state["open"]) if state["open"] is not None else None
        self._spikes = deque(list(spike) for spike in state["spikes"])
        self._returns.load_state_dict(state)
        self._unusual.clear()
        self._unusual.extend((step, float("inf") if z is None else z) for step, z in state["unusual"])
        self._sick, self._skipped, self._loss_in_row = state["counts"]


def _unnamed(outliers: list[Trip], trips: list[Trip]) -> list[Trip]:
    """Return the outliers that no rule names already."""
    named = {trip.signal for trip in trips if trip.rule in ("robust_z", "samples")}
    return [trip for trip in outliers if trip.signal not in named]


def _rank(trip: Trip) -> tuple[bool, int]:
    """Return what trips are sorted by: the one that counts first."""
    return trip.level != "act", PRIORITY.index(trip.rule) if trip.rule in PRIORITY else len(PRIORITY)
