"""Randomness is an argument: what a pass asks for, exactly, and nothing else decides its output."""

import pytest
import torch

from contracts.members import FAMILIES, LAYERS, PASSES, block, generator, make_input, make_layer, tape_block
from sparsebnn.checks import InvalidInput
from sparsebnn.nn.passes import noise_size
from sparsebnn.random.noise import NoiseBuffer, RandomNoise

EVERY = pytest.mark.parametrize("kind", PASSES)


class Counting:
    """Counts what is asked for while handing out numbers of another generator."""

    def __init__(self):
        self.asked = {"normal": 0, "logistic": 0}
        self.fresh = RandomNoise(generator(1))

    def normal(self, shape, like):
        out = self.fresh.normal(shape, like)
        self.asked["normal"] += out.numel()
        return out

    def logistic(self, shape, like):
        out = self.fresh.logistic(shape, like)
        self.asked["logistic"] += out.numel()
        return out


@EVERY
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_noise_size_is_what_a_pass_consumes(family, layer, kind):
    """noise_size equals the numbers a pass takes: that many are enough, and one fewer is not."""
    built, x = make_layer(layer, family, 1), make_input(layer)
    size = noise_size(built, x, PASSES[kind])
    counting = Counting()
    with PASSES[kind](counting):
        built(x)
    assert counting.asked == {"normal": size.normal, "logistic": size.logistic}
    normals, logistics = block(size, 1)
    with PASSES[kind](NoiseBuffer(normals, logistics)):
        built(x)
    for short in ((normals[:-1], logistics), (normals, logistics[:-1])):
        if len(short[0]) == size.normal and len(short[1]) == size.logistic:
            continue  # the pass takes no numbers of this kind
        with pytest.raises(InvalidInput), PASSES[kind](NoiseBuffer(*short)):
            built(x)


@EVERY
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_pass_is_a_function_of_its_noise(family, kind):
    """The same numbers give the same output whatever torch's generator does; others give another.

    And torch's generator is left where it was.
    """
    built, x = make_layer("linear", family, 1), make_input("linear")
    noise = tape_block(built, x, 1, PASSES[kind])
    outputs = []
    for seed, numbers in ((0, noise), (1, noise), (0, tape_block(built, x, 2, PASSES[kind]))):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        with PASSES[kind](NoiseBuffer(*numbers)):
            outputs.append(built(x))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_forward_leaves_nothing_behind(family):
    """A pass writes nothing on the layer: state and attributes are the same before and after."""
    built, x = make_layer("linear", family, 1), make_input("linear")
    state = {name: value.clone() for name, value in built.state_dict().items()}
    attributes = {name: set(vars(module)) for name, module in built.named_modules()}
    built.forward_with_kl(x)
    built(x)
    for name, value in built.state_dict().items():
        assert torch.equal(value, state[name])
    assert {name: set(vars(module)) for name, module in built.named_modules()} == attributes
