"""A link budget for people, in 80 columns, and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from edgelink.training.trainer.link_budget.links import Measured
from edgelink.training.trainer.link_budget.predict import (
    ACTIONS,
    ENVIRONMENTS,
    LEARNER,
    LEARNERS,
    LINK,
    ROUND_TRIP,
    TIGHT,
    TURNS,
    Load,
    Prediction,
)
from edgelink.training.trainer.link_budget.traffic import MESSAGES, TRAINER, Work

_MENTIONED = 0.05  # messages, from this share of an update on
# Where no other placement would do, by what limits; RLinf takes turns, and has no lag to be raised.
_REMEDIES = {
    LINK: "make observations or the model smaller",
    LEARNER: "make the learner faster or the model smaller",
    LEARNERS: "place the learners on one node, or take fewer epochs or larger minibatches",
    ENVIRONMENTS: "make the environments faster or use more of them",
    ACTIONS: "let each env worker step more environments at a time, or make observations smaller",
    ROUND_TRIP: "collect more env steps for each update, or make observations or the model smaller",
    TURNS: "make the learner or the environments faster",
}
_OVERLAPPING = {kind: f"raise max_policy_lag, {_REMEDIES[kind]}" for kind in (ROUND_TRIP, TURNS)}
_KEPT = "\N{NO-BREAK SPACE}"
_ROW = "{:<21} {:>8} {:>6} {:>12} {:>12} {:>6}"


def lines(prediction: Prediction, work: Work, measured: Measured) -> list[str]:
    """The links with what they carry and what the training wants, then what follows from it."""
    told = [_ROW.format("way", "RTT", "loss", "carries", "needs", "share").rstrip()]
    for load in prediction.loads:
        link = measured.links.get((load.source, load.target))
        way = f"{measured.name(load.source)} → {measured.name(load.target)}"
        if link is None:
            told.append(_ROW.format(way, "-", "-", "not measured", mbit(load.mbit_per_s), "-"))
            continue
        loss = "-" if link.lost is None else f"{100 * link.lost:.1f} %"
        share = "-" if load.share is None else f"{100 * load.share:.0f} %"
        carries = f"{mbit(link.mbit_per_s)}"
        told.append(_ROW.format(way, f"{link.rtt_ms:.0f} ms", loss, carries, mbit(load.mbit_per_s), share))
    for load in prediction.loads:
        told += _wrapped(f"  {measured.name(load.source)} → {measured.name(load.target)}: {_parts(load)} an update")
    for node, seconds in prediction.sync_s.items():
        told.append(f"a new policy ({size(work.weights_bytes)}) is on {measured.name(node)} after {duration(seconds)}")
    return [*told, *_pace(prediction, work)]


def warning(prediction: Prediction, work: Work, measured: Measured, others: Sequence[tuple[str, Prediction]]) -> str:
    """One sentence where a link is tight or cannot carry what is wanted; empty where all is well."""
    wanted = work.wanted_env_steps_per_s
    if prediction.is_too_much:
        assert wanted is not None
        assert prediction.env_steps_per_s is not None
        allowed = rounded(prediction.env_steps_per_s)
        text = f"{plain(wanted, 6)} env steps/s are wanted, {allowed} are possible, limited by {prediction.limit}"
        kind = prediction.kind
    elif prediction.is_tight:
        tight = max(prediction.loads, key=lambda load: load.share or 0.0)
        way = f"{measured.name(tight.source)} → {measured.name(tight.target)}"
        text = f"{way} is used by {100 * (tight.share or 0):.0f} %, more than {100 * TIGHT:.0f} % of what it carries"
        kind = LINK
    else:
        return ""
    return f"{text}; {advice(others, kind, work.rules)}"


def advice(others: Sequence[tuple[str, Prediction]], kind: str, rules: str) -> str:
    """What to do instead, ``kind`` being what limits."""
    good = [(name, other) for name, other in others if not other.is_too_much]
    if not good:
        remedy = (_OVERLAPPING if rules == TRAINER else {}).get(kind, _REMEDIES[kind])
        return f"no other placement of these processes over these links would do; {remedy}"
    name, other = good[0]
    pace = "" if other.env_steps_per_s is None else f": {rounded(other.env_steps_per_s)} env steps/s, by {other.limit}"
    return f"place {name}{pace}"


def to_dict(
    prediction: Prediction, work: Work, measured: Measured, others: Sequence[tuple[str, Prediction]] = ()
) -> dict[str, Any]:
    """Plain data for JSON."""
    return {
        **_prediction(prediction, measured),
        "weights_bytes": round(work.weights_bytes),
        "observation_bytes": round(work.observation_bytes, 1),
        "wanted_env_steps_per_s": work.wanted_env_steps_per_s,
        "max_policy_lag": work.max_policy_lag,
        "measured": measured.to_dict(),
        "better": [{"place": name, **_prediction(other, measured)} for name, other in others],
    }


def _prediction(prediction: Prediction, measured: Measured) -> dict[str, Any]:
    return {
        "env_steps_per_s": _or_none(prediction.env_steps_per_s),
        "limit": prediction.limit,
        "is_tight": prediction.is_tight,
        "is_too_much": prediction.is_too_much,
        "sync_s": {measured.name(node): round(seconds, 4) for node, seconds in prediction.sync_s.items()},
        "links": [
            {
                "from": measured.name(load.source),
                "to": measured.name(load.target),
                "mbit_per_s": round(load.mbit_per_s, 4),
                "share": _or_none(load.share),
                "carries_env_steps_per_s": _or_none(load.carries_env_steps_per_s),
                "update_bytes": {what: round(count) for what, count in load.parts.items()},
            }
            for load in prediction.loads
        ],
    }


def _pace(prediction: Prediction, work: Work) -> list[str]:
    if prediction.env_steps_per_s is None:
        return ["env steps/s: as many as the environments make; no link limits them"]
    found = f"env steps/s: {rounded(prediction.env_steps_per_s)}, limited by {prediction.limit}"
    wanted = work.wanted_env_steps_per_s
    if wanted is None:
        if all(pace is None for pace in work.env_steps_per_s):
            most = plain(prediction.env_steps_per_s, 2)
            return [
                f"env steps/s: over these links {most} at most, limited by {prediction.limit}",
                "  how many the environments make is not known before they have run",
            ]
        return [found]
    return [f"{found}; {plain(wanted, 6)} are wanted"]


def _wrapped(line: str) -> list[str]:
    """In 80 columns, two of which a run's own indent takes; a number stays with what it is of."""
    kept = line.replace(" ", _KEPT).replace(f",{_KEPT}", ", ")
    return [each.replace(_KEPT, " ") for each in textwrap.wrap(kept, 78, subsequent_indent=4 * _KEPT)]


def _parts(load: Load) -> str:
    least = {MESSAGES: _MENTIONED * load.update_bytes}
    return ", ".join(f"{what} {size(count)}" for what, count in load.parts.items() if count > least.get(what, 0))


def mbit(value: float) -> str:
    is_less = float(f"{value:.3g}") < 1000  # as it is written
    return f"{plain(value, 3)} Mbit/s" if is_less else f"{plain(value / 1000, 3)} Gbit/s"


def size(count: float) -> str:
    """Bytes, as people write them."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if float(f"{count:.3g}") >= factor:  # as it is written
            return f"{plain(count / factor, 3)} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Such as ``0.16 ms`` or ``3.3 s``."""
    return f"{rounded(1000 * seconds)} ms" if seconds < 0.1 else f"{rounded(seconds)} s"


def rounded(value: float) -> str:
    """Steps a second, or seconds, as people write them."""
    return f"{value:,.0f}" if value >= 10 else plain(value, 2)


def plain(value: float, digits: int) -> str:
    """With so many significant digits, and never as a power of ten."""
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def _or_none(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
