"""settings.py: groups of parameters, rates over epochs, the weight of the KL."""

import dataclasses

import pytest

from sparsebnn.checks import InvalidInput
from sparsebnn.training import Constant, Cosine, Settings, Steps


def test_settings_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().epochs = 3


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "The 'epochs' of Settings must be a whole number of at least 1. Got 0 instead."),
        (
            {"batch_size": 1.5},
            "The 'batch_size' of Settings must be a whole number of at least 1. Got 1.5 instead.",
        ),
        (
            {"learning_rate": -0.1},
            "The 'learning_rate' of Settings must be a finite rate of at least 0. Got -0.1 instead.",
        ),
        (
            {"learning_rate": float("nan")},
            "The 'learning_rate' of Settings must be a finite rate of at least 0. Got nan instead.",
        ),
        (
            {"learning_rates": {"inclusion_logit": -1.0}},
            "The 'inclusion_logit' of Settings must be a finite rate of at least 0. Got -1.0 instead.",
        ),
        (
            {"learning_rate": "0.1"},
            "The 'learning_rate' of Settings must be a finite rate of at least 0. Got '0.1' instead.",
        ),
        (
            {"learning_rates": 0.01},
            "The 'learning_rates' of Settings must be a dict by endings of names. Got 0.01 instead. "
            "For example {'inclusion_logit': 0.01}.",
        ),
        (
            {"temperature": [1.0, 0.5]},
            "The 'temperature' of Settings must be finite and at least 0. Got [1.0, 0.5] instead.",
        ),
        (
            {"temperature": -1.0},
            "The 'temperature' of Settings must be finite and at least 0. Got -1.0 instead.",
        ),
        ({"warmup": -0.5}, "The 'warmup' of Settings must be finite and at least 0. Got -0.5 instead."),
        (
            {"warmup": 1.5},
            "The 'warmup' of Settings must be a share of the epochs, from 0 to 1. Got 1.5 instead.",
        ),
        (
            {"schedule": "cosin"},
            "The 'schedule' of Settings must be one of 'constant', 'steps', 'cosine'. "
            "Got 'cosin' instead. Did you mean 'cosine'?",
        ),
        (
            {"schedules": {"mean": "step"}},
            "The 'schedule' of Settings must be one of 'constant', 'steps', 'cosine'. "
            "Got 'step' instead. Did you mean 'steps'?",
        ),
        (
            {"schedule": 0.5},
            "The 'schedule' of Settings must be a name or a schedule. Got float instead.",
        ),
    ],
)
def test_messages(options, message):
    with pytest.raises(InvalidInput) as error:
        Settings(**options)
    assert str(error.value) == message


def test_schedules_by_name():
    for name, kind in (("constant", Constant()), ("cosine", Cosine())):
        named, given = Settings(epochs=9, schedule=name), Settings(epochs=9, schedule=kind)
        assert [named.rate("", e) for e in range(9)] == [given.rate("", e) for e in range(9)]


@pytest.mark.parametrize("shift", [-1, 1.5, True])
def test_shifts_are_numbers_of_pixels(shift):
    with pytest.raises(InvalidInput, match="'shift' of Settings must be a whole number of at least 0"):
        Settings(shift=shift)


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
