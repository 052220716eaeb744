"""Credible sets from samples whose sets are known."""

import numpy as np
import pytest

from sparsebnn.checks import InvalidInput
from sparsebnn.selection import credible_sets, group_inclusion


def blocks(rng, rows=400, rho=0.9):
    """Columns 0–2 alike, 3–5 alike, 6 alone."""
    z = rng.standard_normal((rows, 3))
    own = rng.standard_normal((rows, 7))
    return np.sqrt(rho) * z[:, [0, 0, 0, 1, 1, 1, 2]] + np.sqrt(1 - rho) * own


def one_of(rng, draws, columns, probs, width=7):
    """Exactly one of the columns in each sample."""
    samples = np.zeros((draws, width), dtype=bool)
    samples[np.arange(draws), rng.choice(columns, draws, p=probs)] = True
    return samples


def test_stand_ins_form_one_set_and_effects_sets_of_their_own():
    rng = np.random.default_rng(0)
    x = blocks(rng)
    samples = one_of(rng, 2000, [0, 1], [0.7, 0.3]) | one_of(rng, 2000, [3, 4, 5], [0.5, 0.47, 0.03])
    found = credible_sets(samples, x)
    assert sorted(one.members for one in found) == [(0, 1), (3, 4)]
    for one in found:
        assert one.coverage >= 0.95
        assert one.coverage == samples[:, list(one.members)].any(1).mean()
        corr = np.abs(np.corrcoef(x[:, list(one.members)].T))
        assert one.purity == pytest.approx(corr.min())


def test_two_effects_in_one_block_are_separated():
    """All six columns are correlated; co-occurrence tells the effects apart."""
    rng = np.random.default_rng(1)
    z = rng.standard_normal((300, 1))
    x = 0.9 * z + 0.4 * rng.standard_normal((300, 7))
    samples = one_of(rng, 3000, [0, 1], [0.55, 0.45]) | one_of(rng, 3000, [2, 3], [0.5, 0.5])
    assert sorted(sorted(one.members) for one in credible_sets(samples, x)) == [[0, 1], [2, 3]]


def test_separate_effects_that_are_nearly_certain_do_not_share_a_set():
    """0 or 1 is included with probability 0.98, but 1 more often with 0 (0.90) than without it (0.67)."""
    samples = np.array([[1, 1]] * 850 + [[1, 0]] * 90 + [[0, 1]] * 40 + [[0, 0]] * 20)
    alike = np.array([[1.0, 0.8], [0.8, 1.0]])
    assert credible_sets(samples, correlations=alike) == []
    assert [one.members for one in credible_sets(samples, correlations=alike, min_probability=0.5)] == [
        (0,),
        (1,),
    ]


def test_correlations_take_the_place_of_rows():
    rng = np.random.default_rng(3)
    x, samples = blocks(rng), one_of(rng, 500, [0, 1], [0.6, 0.4])
    (given,) = credible_sets(samples, x)
    (same,) = credible_sets(samples, correlations=-np.corrcoef(x.T))
    assert (same.members, same.coverage) == (given.members, given.coverage)
    assert same.purity == pytest.approx(given.purity, abs=1e-12)
    assert credible_sets(samples, correlations=np.eye(7)) == []


def test_uncertain_and_impure_effects_have_no_set():
    rng = np.random.default_rng(2)
    x = blocks(rng)
    uncertain = one_of(rng, 1000, [0, 1, 2], [0.4, 0.3, 0.3]) & (rng.random((1000, 1)) < 0.9)
    assert credible_sets(uncertain, x) == []
    assert len(credible_sets(uncertain, x, coverage=0.8)) == 1
    spread = one_of(rng, 1000, [0, 3, 6], [0.4, 0.3, 0.3])
    assert credible_sets(spread, x) == []
    assert set(credible_sets(spread, x, min_purity=0.0)[0].members) == {0, 3, 6}


def test_uncertain_effects_have_sets_when_asked_for():
    """Given that the effect is there, 0 and 1 hold 0.97 of it; the set's own probability is 0.78."""
    rng = np.random.default_rng(4)
    x = blocks(rng)
    there = rng.random((5000, 1)) < 0.8
    samples = one_of(rng, 5000, [0, 1, 2], [0.57, 0.4, 0.03]) & there
    samples |= one_of(rng, 5000, [3, 4], [0.5, 0.5])
    assert [set(one.members) for one in credible_sets(samples, x)] == [{3, 4}]
    found = credible_sets(samples, x, min_probability=0.7)
    assert sorted(sorted(one.members) for one in found) == [[0, 1], [3, 4]]
    assert min(one.coverage for one in found) == pytest.approx(0.97 * 0.8, abs=0.02)
    assert len(credible_sets(samples, x, min_probability=0.85)) == 1


def test_a_large_set_must_be_more_probable_than_a_small_one():
    """With probability 0.8, two members are 0.5 in vain per effect, twenty are 5: too many."""
    rng = np.random.default_rng(7)
    z = rng.standard_normal((50, 2))
    x = z[:, [0] * 2 + [1] * 20]
    samples = one_of(rng, 5000, np.arange(2), np.full(2, 0.5), 22) & (rng.random((5000, 1)) < 0.8)
    samples |= one_of(rng, 5000, np.arange(2, 22), np.full(20, 0.05), 22) & (rng.random((5000, 1)) < 0.8)
    members = [set(one.members) for one in credible_sets(samples, x, min_probability=0.5)]
    assert members == [{0, 1}]
    every = credible_sets(samples, x, min_probability=0.5, max_false_members=None)
    assert len(every) == 2
    exists = samples[:, 2:].any(1).mean()
    false = max(len(one) for one in every) * (1.0 - exists) / exists
    assert 4.0 < false < 6.0
    for limit, sets in ((false + 0.01, 2), (false - 0.01, 1)):
        assert len(credible_sets(samples, x, min_probability=0.5, max_false_members=limit)) == sets


def test_certain_effects_have_sets_of_any_size():
    """Whoever asks for less certain effects as well loses none that is certain."""
    rng = np.random.default_rng(8)
    x = np.repeat(rng.standard_normal((50, 1)), 60, axis=1)
    whole = one_of(rng, 20000, np.arange(60), np.full(60, 1 / 60), 60)
    there = rng.random((20000, 1))
    (strict,) = credible_sets(whole & (there < 0.96), x)
    assert len(strict) * (1.0 - strict.coverage) > 2.0
    (found,) = credible_sets(whole & (there < 0.96), x, min_probability=0.9)
    assert found.coverage == pytest.approx(0.95 * 0.96, abs=0.01)
    assert credible_sets(whole & (there < 0.94), x, min_probability=0.85) == []


def test_members_that_the_coverage_does_not_need_are_dropped():
    """Greedily, 0 comes first; 1 and 2 together cover what it does."""
    samples = np.array([[1, 1, 0]] * 30 + [[1, 0, 1]] * 30 + [[0, 1, 0]] * 20 + [[0, 0, 1]] * 20)
    z = np.random.default_rng(0).standard_normal((20, 1))
    assert credible_sets(samples, z[:, [0, 0, 0]])[0].members == (1, 2)


def test_smallest_set_by_brute_force():
    """Exclusive stand-ins: the smallest set takes the most probable until the coverage is reached."""
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.full(12, 0.5))
    samples = one_of(rng, 5000, np.arange(12), probs, width=12)
    z = rng.standard_normal((30, 1))
    found = credible_sets(samples, np.repeat(z, 12, axis=1))
    shares = np.sort(samples.mean(0))[::-1]
    assert len(found) == 1
    assert len(found[0]) == int((np.cumsum(shares) < 0.95).sum()) + 1


def test_names_groups_and_text():
    samples = np.array([[1, 0], [0, 1], [1, 0], [0, 1]])
    z = np.random.default_rng(0).standard_normal((9, 1))
    found = credible_sets(samples, z[:, [0, 0]], names=["age", "years"])
    assert found[0].names == ("age", "years")
    assert str(found[0]) == "one of 2 (age, years): probability 1.000, purity 1.00"
    assert group_inclusion(samples, {"both": ["age", "years"], "one": [1]}, ["age", "years"]) == {
        "both": 1.0,
        "one": 0.5,
    }


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"samples": np.full((3, 2), 0.4)}, "samples"),
        ({"samples": np.ones(3)}, "samples"),
        ({"X": np.ones((5, 3))}, "X"),
        ({"coverage": 1.0}, "coverage"),
        ({"min_purity": -0.1}, "min_purity"),
        ({"min_probability": 0.97}, "min_probability"),
        ({"min_probability": 0.5, "max_false_members": 0.0}, "max_false_members"),
        ({"names": ["a"]}, "names"),
        ({"X": None}, "X"),
        ({"correlations": np.eye(2)}, "X"),
        ({"X": None, "correlations": np.eye(3)}, "correlations"),
    ],
)
def test_bad_input_is_named(change, named):
    given = {"samples": np.ones((4, 2)), "X": np.ones((5, 2))} | change
    with pytest.raises(InvalidInput, match=f"'{named}'"):
        credible_sets(**given)


@pytest.mark.parametrize("groups", [{"a": []}, {"a": [5]}, {"a": ["town"]}])
def test_groups_must_be_columns(groups):
    with pytest.raises(InvalidInput, match="'groups'"):
        group_inclusion(np.ones((4, 2)), groups, ["age", "years"])


def test_tables_that_have_no_correlations_are_refused():
    """Without them every purity would be 0, and no set be found."""
    rng = np.random.default_rng(0)
    samples, x = rng.random((50, 3)) < 0.5, rng.standard_normal((40, 3))
    x[5, 1] = np.nan
    with pytest.raises(InvalidInput, match=r"NaN in column 1 \(1 row\)"):
        credible_sets(samples, x)
    with pytest.raises(InvalidInput, match="at least 3 rows"):
        credible_sets(samples, x[:1])
