"""settings.py: groups of parameters, rates and schedules over epochs, the weight of the KL."""

import math

import pytest

from sparsebnn.checks import InvalidInput
from sparsebnn.training import Cosine, Settings, Steps
from sparsebnn.training.optimizers import schedule


def test_groups_go_by_the_longest_ending():
    settings = Settings(
        learning_rates={"logit": 0.1, "inclusion_logit": 0.2, "0.weights.inclusion_logit": 0.3},
        schedules={"mean": "constant"},
    )
    assert settings.group_of("network.2.weights.inclusion_logit") == "inclusion_logit"
    assert settings.group_of("network.0.weights.inclusion_logit") == "0.weights.inclusion_logit"
    assert settings.group_of("other_logit") == "logit"
    assert settings.group_of("network.0.weights.mean") == "mean"
    assert settings.group_of("network.0.weights.raw_std") == ""


def test_rate_and_schedule_are_found_each_by_its_own_ending():
    """A group that only a schedule or the refit names keeps the rate that a shorter ending gives it."""
    logit = "network.0.weights.inclusion_logit"
    own = Settings(
        learning_rates={"inclusion_logit": 0.5}, schedules={"0.weights.inclusion_logit": "constant"}
    )
    assert own.rate(own.group_of(logit), 50) == 0.5
    short = Settings(learning_rates={"logit": 0.25}, refit=0.2)
    assert short.rate(short.group_of(logit), 0) == 0.25
    assert short.rate(short.group_of(logit), 99) == 0.0


def test_rates():
    """A group has its own rate, its own schedule, or both; the rest follows the defaults."""
    settings = Settings(
        epochs=4,
        learning_rate=0.5,
        schedule=Steps((2,)),
        learning_rates={"a": 0.1, "b": 0.2},
        schedules={"b": "constant", "c": Cosine(0.0)},
    )
    assert [settings.rate("", e) for e in (0, 2)] == pytest.approx([0.5, 0.05])
    assert [settings.rate("a", e) for e in (0, 2)] == pytest.approx([0.1, 0.01])
    assert [settings.rate("b", e) for e in (0, 2)] == pytest.approx([0.2, 0.2])
    assert [settings.rate("c", e) for e in (0, 2)] == pytest.approx([0.5, 0.25])


def test_warm_up():
    """Linear to the temperature over the first share of the epochs, then there."""
    settings = Settings(epochs=8, warmup=0.5, temperature=0.6)
    assert [settings.beta(e) for e in range(8)] == pytest.approx([0.15, 0.3, 0.45] + [0.6] * 5)
    assert Settings(epochs=8, temperature=0.6).beta(0) == 0.6
    assert Settings(epochs=8, warmup=1.0).beta(7) == 1.0
    # A ramp shorter than an epoch is over in the first.
    assert Settings(epochs=2, warmup=0.1).beta(0) == 1.0


def test_schedules_by_name():
    assert factors(schedule("constant"), 5) == [1.0] * 5
    assert schedule("cosine") == Cosine()
    assert Settings(epochs=9, schedule="cosine").rate("", 4) == Settings(epochs=9, schedule=Cosine()).rate(
        "", 4
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("batch_size", 1.5),
        *(("learning_rate", bad) for bad in (-0.1, float("nan"), "0.1")),
        ("inclusion_logit", {"learning_rates": {"inclusion_logit": -1.0}}),
        ("learning_rates", 0.01),
        *(("temperature", bad) for bad in ([1.0, 0.5], -1.0)),
        *(("warmup", bad) for bad in (-0.5, 1.5)),
        *(("schedule", bad) for bad in ("cosin", 0.5, {"schedules": {"mean": "step"}})),
        *(("shift", bad) for bad in (-1, 1.5, True)),
        *(("target_density", bad) for bad in (0.0, (0.5, 1.5))),
        ("refit", 1.0),
    ],
)
def test_values_that_make_no_sense_are_named(name, value):
    options = value if isinstance(value, dict) else {name: value}
    with pytest.raises(InvalidInput, match=f"^The '{name}' of Settings must be "):
        Settings(**options)


def factors(of, epochs):
    return [of.factor(e, epochs) for e in range(epochs)]


def test_steps():
    assert factors(Steps((1, 3), 0.5), 5) == [1.0, 0.5, 0.5, 0.25, 0.25]
    assert factors(Steps((0,), 0.5), 2) == [0.5, 0.5]
    assert factors(Steps(()), 2) == [1.0, 1.0]


def test_cosine():
    expected = [0.5 * (1 + math.cos(math.pi * e / 10)) for e in range(10)]
    assert factors(Cosine(0.0), 10) == pytest.approx(expected)
    assert factors(Cosine(0.3), 10) == pytest.approx([max(0.3, f) for f in expected])


@pytest.mark.parametrize(("epochs", "at"), [(4, 2), (5, 2), (1, 0)])
def test_steps_by_name_falls_to_a_tenth_halfway(epochs, at):
    """With one epoch there is no first half, but there should be a rate."""
    assert factors(schedule("steps"), epochs) == [1.0 if e < at else 0.1 for e in range(epochs)]


def test_the_record_of_a_training_without_phases_names_none():
    """Checkpoints and result files from before phases were fields must agree with these settings."""
    phases = {"free_fraction", "refit_temperature_factor"}
    assert not phases & Settings(refit=0.2, target_density=0.1).named().keys()
    assert phases <= Settings(refit=0.2, target_density=0.1, free_fraction=0.5).named().keys()
    assert phases & Settings(refit=0.2, refit_temperature_factor=2.0).named().keys() == {
        "refit_temperature_factor"
    }


def test_a_hotter_refit_needs_no_phases():
    settings = Settings(epochs=10, refit=0.2, temperature=0.5, refit_temperature_factor=3.0)
    assert [settings.beta(epoch) for epoch in (0, 7, 8, 9)] == [0.5, 0.5, 1.5, 1.5]
