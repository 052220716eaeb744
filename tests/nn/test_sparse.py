"""sparse.py: every method computes what dense PyTorch computes, and the choice is never worse."""

import copy
import pickle
import threading

import pytest
import torch
from torch import nn

import sparsebnn
from contracts.members import generator
from sparsebnn.checks import InvalidInput
from sparsebnn.kernels.compiler import Kernel, kernel
from sparsebnn.nn import sparse as module
from sparsebnn.nn.compaction import Take, compact
from sparsebnn.nn.compiled import compiled_call
from sparsebnn.nn.lowering import lower
from sparsebnn.nn.networks import InputSkip
from sparsebnn.nn.sparse import METHODS, SparseNetwork

ROWS = (1, 2, 31, 32, 33, 1000)
needs_compiler = pytest.mark.skipif(kernel().run is None, reason=f"no kernel: {kernel().description}")


def pruned(network, share, seed=0):
    """A random part of the weights is left."""
    g = generator(seed)
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=g, dtype=torch.float64))
            if p.dim() > 1:
                p.mul_(
                    (torch.rand(p.shape, generator=g, dtype=torch.float64) < share)
                    / (share * p[0].numel()) ** 0.5
                )
    return network.eval()


def images(**conv):
    network = nn.Sequential(
        nn.Conv2d(2, 5, 3, **conv),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(5, 4, 2),
        nn.Tanh(),
        nn.AvgPool2d(2, stride=1),
        nn.Flatten(),
        nn.LazyLinear(6),
        nn.ReLU(),
        nn.Linear(6, 3),
    )
    network(torch.zeros(1, 2, 12, 12))  # the lazy layer gets its size
    return network


def only(layer):
    return nn.Sequential(layer)


ACTIVATIONS = [
    nn.ReLU(),
    nn.LeakyReLU(0.3),
    nn.GELU(),
    nn.GELU(approximate="tanh"),
    nn.SiLU(),
    nn.Tanh(),
    nn.Sigmoid(),
    nn.Identity(),
]
CONVOLUTIONS = {
    "plain": {},
    "stride": {"stride": 2},
    "strides": {"stride": (3, 2)},
    "padding": {"padding": 1},
    "paddings": {"padding": (2, 1)},
    "same": {"padding": "same", "dilation": (2, 1)},
    "dilation": {"dilation": 2},
    "all": {"stride": (2, 3), "padding": (1, 2), "dilation": (2, 1)},
    "reflect": {"padding": 2, "padding_mode": "reflect"},
    "replicate": {"padding": 2, "padding_mode": "replicate", "stride": 2},
    "circular": {"padding": (1, 2), "padding_mode": "circular"},
    "no bias": {"bias": False},
}
POOLS = {
    "halves": nn.AvgPool2d(2),
    "halves, most": nn.MaxPool2d(2),
    "three": nn.AvgPool2d(3, stride=2),
    "most of three": nn.MaxPool2d(3, stride=(1, 2)),
    "border": nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False),
    "most with border": nn.MaxPool2d(3, stride=2, padding=1, dilation=2),
    "ceil": nn.AvgPool2d(2, ceil_mode=True),
    "most, ceil": nn.MaxPool2d((3, 2), ceil_mode=True),
}


@torch.no_grad()
def check(network, *shape, rows=ROWS):
    """The compiled kernel beside torch, in double precision."""
    call = compiled_call(lower(network, shape), kernel())
    exact = copy.deepcopy(network).double()
    for n in rows:
        x = torch.randn(n, *shape, generator=generator(n))
        expected = exact(x.double())
        found = call(x)
        assert found.shape == expected.shape
        scale = max(1.0, float(expected.abs().max()))
        assert float((found - expected).abs().max()) < 1e-5 * scale


@needs_compiler
@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_dense_layers(activation, share):
    layers = (nn.Linear(40, 33), activation, nn.Linear(33, 17), activation, nn.Linear(17, 5), activation)
    check(pruned(nn.Sequential(*layers), share), 40)


@needs_compiler
@pytest.mark.filterwarnings("ignore:Using padding='same'")  # of torch, which copies its input then
@pytest.mark.parametrize("options", CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_convolutions(options, share):
    check(pruned(only(nn.Conv2d(3, 4, (3, 2), **options)), share), 3, 13, 11, rows=(1, 3, 17))
    line = {name: value[0] if isinstance(value, tuple) else value for name, value in options.items()}
    check(pruned(only(nn.Conv1d(3, 4, 3, **line)), share), 3, 19, rows=(1, 3, 17))
    check(pruned(only(nn.Conv1d(2, 4, 3, **line)), share), 2, 6, rows=(1, 3))


@needs_compiler
@pytest.mark.parametrize("pool", POOLS.values(), ids=list(POOLS))
def test_pools(pool):
    check(only(pool), 3, 9, 11, rows=(1, 3, 17))
    check(only(pool), 3, 8, 10, rows=(1, 3, 17))


@needs_compiler
@pytest.mark.parametrize("pool", [nn.AvgPool1d(3, 2), nn.MaxPool1d(2, ceil_mode=True)], ids=repr)
def test_pools_of_lines(pool):
    check(nn.Sequential(nn.Tanh(), pool), 3, 9, rows=(1, 3, 17))


@needs_compiler
@pytest.mark.parametrize("share", [0.05, 0.4])
def test_images(share):
    check(pruned(images(padding=1), share), 2, 12, 12)


@needs_compiler
def test_layers_with_hardly_anything():
    """No weight at all, one unit, units without weights, a wide layer with indices above 16 bits."""
    empty = pruned(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), 0.5)
    with torch.no_grad():
        empty[0].weight.zero_()
    check(empty, 6)
    check(pruned(nn.Sequential(nn.Linear(1, 1), nn.Tanh(), nn.Linear(1, 1)), 1.0), 1)
    check(pruned(only(nn.Linear(70_000, 3)), 0.001), 70_000, rows=(1, 4))
    check(nn.Sequential(Take(torch.tensor([5, 0, 3])), pruned(nn.Linear(3, 2), 1.0)), 7)
    channels = nn.Sequential(Take(torch.tensor([2, 0]), 1), pruned(nn.Conv2d(2, 3, 2), 0.5))
    check(channels, 3, 4, 5, rows=(1, 3, 17))


@needs_compiler
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_extreme_values(activation):
    """Large inputs do not overflow, and NaN stays NaN."""
    x = torch.tensor(
        [[-1e30, -200.0, -90.0, -0.05, -1e-6, 0.0, 1e-6, 0.09, 0.11, 3.0, 88.0, 1e30, torch.nan]]
    )
    x = x.expand(20, -1).contiguous()
    found = compiled_call(lower(only(activation), [13]), kernel())(x)
    torch.testing.assert_close(found, activation(x), rtol=2e-6, atol=1e-6, equal_nan=True)


@needs_compiler
def test_several_threads_in_a_call():
    """Enough work for two of them, and a number of rows that leaves a block incomplete."""
    before = torch.get_num_threads()
    network = pruned(nn.Sequential(nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 90), nn.Tanh()), 0.5)
    program = lower(network, [200])
    assert 1003 * program.products > 4_000_000
    torch.set_num_threads(2)
    try:
        check(network, 200, rows=(1, 1003, 5, 1003))
    finally:
        torch.set_num_threads(before)


def test_median_models():
    """A Bayesian network is compacted; both give the same."""
    initial = sparsebnn.init.Initial(inclusion_logit=sparsebnn.init.Normal(-2.0, 1.0))
    network = sparsebnn.mlp([20, 30, 25, 4], initial=initial)
    small = compact(network).network
    found = SparseNetwork(network, batch_sizes=(1, 64))
    lines = sparsebnn.lenet(initial=initial)
    pictures = SparseNetwork(lines, (1, 28, 28), batch_sizes=(2,))
    with torch.no_grad():
        for n in ROWS:
            x = torch.randn(n, 20, generator=generator(n))
            assert float((found(x) - small(x)).abs().max()) < 1e-5
        x = torch.rand(3, 1, 28, 28, generator=generator(0))
        expected = compact(lines).network(x)
        assert float((pictures(x) - expected).abs().max()) < 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method, monkeypatch):
    """Whichever is fastest: the choice is made for it here."""
    if method == "kernel" and kernel().run is None:
        pytest.skip(kernel().description)
    monkeypatch.setattr(module, "_times", lambda runs, x: {name: float(method not in name) for name in runs})
    chain = nn.Sequential(nn.Linear(9, 12), nn.GELU(), nn.Linear(12, 3, bias=False))
    skip = InputSkip([nn.Linear(9, 12), nn.Linear(12 + 9, 3)], nn.GELU())
    for network in (pruned(chain, 0.3), pruned(skip, 0.3)):
        found = SparseNetwork(network)
        assert set(found.methods.values()) == {(method, method)}
        for n in ROWS:
            x = torch.randn(n, 9, generator=generator(n))
            torch.testing.assert_close(found(x), network(x).detach(), rtol=0, atol=1e-5)
            assert not found(x).requires_grad


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(*(part for _ in range(5) for part in (nn.Linear(8, 8), nn.Tanh()))),
        lambda: InputSkip([nn.Linear(8, 8), *(nn.Linear(16, 8) for _ in range(4))], nn.Tanh()),
    ],
    ids=["chain", "input skip"],
)
def test_mixed_methods(build, monkeypatch):
    """Layers of the kernel between dense ones: each part reads what the one before it put out."""
    if kernel().run is None:
        pytest.skip(kernel().description)
    plan = iter(["kernel", "dense", "torch_csr", "kernel", "kernel"])

    def times(runs, x):
        if "dense" in runs:
            chosen = next(plan)
            return {name: float(name != chosen) for name in runs}
        return {methods: float(len(set(methods)) == 1) for methods in runs}

    monkeypatch.setattr(module, "_times", times)
    network = pruned(build(), 0.4)
    found = SparseNetwork(network, batch_sizes=(4,))
    assert found.methods[4] == ("kernel", "dense", "torch_csr", "kernel", "kernel")
    x = torch.randn(21, 8, generator=generator(0))
    torch.testing.assert_close(found(x), network(x).detach(), rtol=0, atol=1e-5)


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(module, "kernel", lambda: Kernel(None, "no C compiler was found"))
    network = pruned(images(), 0.2)
    found = SparseNetwork(network, (2, 12, 12), batch_sizes=(1, 8))
    assert found.kernel == "no C compiler was found"
    assert not any("kernel" in methods for methods in found.methods.values())
    x = torch.randn(5, 2, 12, 12, generator=generator(0))
    torch.testing.assert_close(found(x), network(x).detach(), rtol=0, atol=1e-5)


def test_the_slower_whole_is_not_taken(monkeypatch):
    """Layers that are fast by themselves and slow together: dense it is."""

    def times(runs, x):
        return {name: float(name in ("dense", ("dense", "dense"))) == ("dense" in runs) for name in runs}

    monkeypatch.setattr(module, "_times", times)
    found = SparseNetwork(pruned(nn.Sequential(nn.Linear(9, 12), nn.Linear(12, 3)), 0.3), batch_sizes=(3,))
    assert found.methods == {3: ("dense", "dense")}


def test_choices_by_batch_size(monkeypatch):
    seen = []

    def fastest(dense, x):
        rows = len(x)
        return (str(rows),), lambda given: seen.append(rows) or dense(given)

    monkeypatch.setattr(module, "_fastest", fastest)
    found = SparseNetwork(only(nn.Linear(3, 2)), batch_sizes=(1000, 1, 100))
    assert found.batch_sizes == (1, 100, 1000)
    for rows in (1, 9, 11, 300, 400, 10_000, 1):
        found(torch.zeros(rows, 3))
    assert seen == [1, 1, 100, 100, 1000, 1000, 1]


def test_other_inputs():
    """Doubles, views, no rows, several axes, another shape, hooks, threads, copies."""
    network = pruned(nn.Sequential(nn.Linear(6, 9), nn.SiLU(), nn.Linear(9, 2)), 0.5)
    found = SparseNetwork(network, batch_sizes=(1, 16))
    x = torch.randn(12, 6, generator=generator(1))
    expected = network(x).detach()
    for view in (x.t().contiguous().t(), x.repeat(1, 2)[:, :6], x.repeat_interleave(2, 0)[::2]):
        torch.testing.assert_close(found(view), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(found(x.reshape(3, 4, 6)), expected.reshape(3, 4, 2), rtol=0, atol=1e-5)
    torch.testing.assert_close(found(x[0]), expected[0], rtol=0, atol=1e-5)
    assert found(x[:0]).shape == (0, 2)
    for twin in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        torch.testing.assert_close(twin(x), expected, rtol=0, atol=1e-5)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        found(torch.zeros(3, 7))
    calls = []
    handle = found.register_forward_hook(lambda *_: calls.append(1))
    found(x)
    handle.remove()
    assert calls == [1]
    double = copy.deepcopy(found).double()
    assert double(x.double()).dtype == torch.float64
    wide = pruned(images(), 0.3)
    flexible = SparseNetwork(nn.Sequential(*wide[:6]), batch_sizes=(2,))
    for size in (12, 15, 12):
        picture = torch.randn(2, 2, size, size, generator=generator(size))
        torch.testing.assert_close(flexible(picture), wide[:6](picture).detach(), rtol=0, atol=1e-5)


def test_threads_do_not_share_scratch():
    network = pruned(nn.Sequential(nn.Linear(50, 60), nn.ReLU(), nn.Linear(60, 8)), 0.2)
    found = SparseNetwork(network, batch_sizes=(40,))
    batches = [torch.randn(40, 50, generator=generator(seed)) for seed in range(4)]
    wrong = []

    def work(x):
        expected = network(x).detach()
        if any(not torch.allclose(found(x), expected, atol=1e-5) for _ in range(200)):
            wrong.append(x)

    threads = [threading.Thread(target=work, args=(x,)) for x in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda: SparseNetwork(nn.Linear(2, 3)), "'network' of SparseNetwork must be a Sequential"),
        (lambda: SparseNetwork(nn.Sequential(nn.Linear(2, 3), nn.Softmax(-1))), "Got Softmax instead"),
        (lambda: SparseNetwork(nn.Sequential(nn.ReLU())), "'network' of SparseNetwork must be one with"),
        (lambda: SparseNetwork(only(nn.Linear(2, 3)), batch_sizes=()), "'batch_sizes' of SparseNetwork"),
        (lambda: SparseNetwork(only(nn.Linear(2, 3)), batch_sizes=(0,)), "'batch_sizes' of SparseNetwork"),
        (lambda: lower(only(nn.BatchNorm1d(3)), [3]), "Got BatchNorm1d instead"),
        (lambda: lower(only(nn.Conv1d(2, 2, 3, groups=2)), [2, 9]), "free of grouped convolutions"),
        (lambda: lower(only(nn.Conv1d(2, 2, 3)), [2, 2]), "inputs as large as its kernel"),
        (lambda: lower(only(nn.Linear(2, 2)), [3]), "rows of 2 numbers"),
        (lambda: lower(only(nn.AvgPool1d(2, padding=1)), [3, 8]), "count their padding"),
    ],
)
def test_messages(build, match):
    with pytest.raises(InvalidInput, match=match):
        build()
