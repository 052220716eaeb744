"""The study of MNIST with few weights: how many are active, and how settings are chosen."""

from dataclasses import asdict, replace

import pytest
import torch

from studies.few_weights import CANDIDATES, CASES, EPOCHS, How, choices, chosen, table, trained


def rows():
    """Images of ten classes."""
    y = torch.arange(40) % 10
    x = torch.randint(0, 256, (40, 1, 28, 28), generator=torch.Generator().manual_seed(0))
    return x.to(torch.uint8), y, x.to(torch.uint8), y


@pytest.mark.parametrize("case", ["lenet300", "conv"])
def test_active_weights_stay_within_the_limit(case):
    how = [How(rate, epochs=6, batch_size=20) for rate in (0.1, 0.2)]
    found = trained(case, how, [0, 1], rows(), "cpu", "eager", weights=60)
    assert [row["settings"] for row in found] == [one.name for one in how]
    assert all(row["active"] <= 60 for row in found)
    assert all(0.0 <= row["accuracy"] <= 1.0 for row in found)


@pytest.mark.parametrize("case", CASES)
def test_validation_rows_choose_the_settings(case):
    best, other = CANDIDATES[case][3], CANDIDATES[case][1]
    scores = (best, 0.9), (other, 0.8)
    seen = [
        {"case": case, "validate": True, "accuracy": score, "active": 7, "settings": how.name, **asdict(how)}
        for how, score in scores
    ]
    tested = {**seen[1], "validate": False, "accuracy": 0.99, "inputs": 5}
    assert chosen(case, [*seen, tested]) == replace(best, epochs=EPOCHS[case])
    assert "| 1 | 99.00% (99.00% to 99.00%) |" in table([*seen, tested])
    assert choices([*seen, tested]).count("\n") == 3
    assert best.name in choices(seen).splitlines()[2]
