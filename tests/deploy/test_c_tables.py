"""c_tables.py: networks as C compile without a warning, run under the sanitizers, and compute the same."""

import shutil
import subprocess

import numpy as np
import pytest
import torch
from readers import SANITIZED, can_sanitize
from torch import nn

from contracts.members import generator
from nn.test_sparse import ACTIVATIONS, images, pruned
from sparsebnn.checks import InvalidInput
from sparsebnn.deploy.c_tables import check_finite, tables
from sparsebnn.kernels.compiler import SOURCE
from sparsebnn.nn.compaction import Take
from sparsebnn.nn.lowering import lower
from sparsebnn.nn.quantization import quantize

STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror")
# A program that reads rows and writes what the network makes of them: ./model PLACE ROWS
MAIN = """
#include <stdio.h>
#include <stdlib.h>
typedef void (*function)(const float *, size_t, float *, float *);
static const struct { function run; size_t inputs, outputs, scratch; } models[] = { MODELS };
int main(int argc, char **argv)
{
    const int place = argc > 2 ? atoi(argv[1]) : 0;
    const size_t rows = (size_t)atoi(argv[2]), inputs = models[place].inputs, outputs = models[place].outputs;
    float *x = malloc(rows * inputs * sizeof *x), *y = malloc(rows * outputs * sizeof *y);
    float *scratch = malloc(models[place].scratch * sizeof *scratch);
    if (fread(x, sizeof *x, rows * inputs, stdin) != rows * inputs) return 1;
    models[place].run(x, rows, y, scratch);
    fwrite(y, sizeof *y, rows * outputs, stdout);
    free(x), free(y), free(scratch);
    return 0;
}
"""
NETWORKS = {
    "dense": (lambda: nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 4)), (30,)),
    "activations": (
        lambda: nn.Sequential(nn.Linear(8, 8), *(m for a in ACTIVATIONS for m in (a, nn.Linear(8, 8)))),
        (8,),
    ),
    "images": (lambda: images(padding=1), (2, 12, 12)),
    "strides": (lambda: nn.Sequential(nn.Conv2d(2, 3, 3, stride=(2, 3), padding=2, dilation=2)), (2, 9, 8)),
    "reflect": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=2, padding_mode="reflect")), (2, 9)),
    "taken": (lambda: nn.Sequential(Take(torch.tensor([1, 4])), nn.Linear(2, 3)), (5,)),
    "pools": (
        lambda: nn.Sequential(
            nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
            nn.MaxPool2d(2, ceil_mode=True, dilation=2, padding=1),
            nn.Flatten(),
            nn.Linear(2 * 4 * 4, 2),
        ),
        (2, 12, 11),
    ),
}


def built(folder, compiler, flags, files):
    """A function of a model's place and of rows, which runs the compiled program."""
    if not can_sanitize(compiler):
        pytest.skip(f"{compiler} or its sanitizers are not installed")
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    sources = [name for name in files if name.endswith(".c")]
    command = [compiler, *STRICT, *flags, *sources, "-o", "model"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

    def run(place, x):
        values = x.numpy().astype(np.float32).tobytes()
        command = [folder / "model", str(place), str(len(x))]
        done = subprocess.run(command, input=values, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return torch.from_numpy(np.frombuffer(done.stdout, np.float32).copy()).reshape(len(x), -1)

    return run


def made(kind):
    build, shape = NETWORKS[kind]
    return pruned(build(), 0.4), shape


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_all_networks_under_the_sanitizers(compiler, tmp_path):
    """One program for all of them: compiling the kernel takes most of the time."""
    programs, expected = [], []
    for kind in NETWORKS:
        network, shape = made(kind)
        quantized = quantize(network, torch.randn(200, *shape, generator=generator(0)))
        for block in (1, 16):
            programs.append((lower(network, shape), block))
            expected.append(network)
        programs.append((quantized.program, 16))
        expected.append(quantized.reference)
    parts = [tables(program, f"m{at}", block) for at, (program, block) in enumerate(programs)]
    arguments = "const float *x, size_t rows, float *y, float *scratch"
    parts += [
        f"void m{at}_run({arguments}) {{ sb_run(&m{at}_network, x, rows, y, scratch, 1); }}\n"
        for at in range(len(programs))
    ]
    declared = [f"void m{at}_run({arguments});" for at in range(len(programs))]
    sizes = [(program.inputs, program.outputs, max(1, program.floats(block))) for program, block in programs]
    models = [f"{{m{at}_run, {a}, {b}, {c}}}" for at, (a, b, c) in enumerate(sizes)]
    kernel = f"#define SB_API static\n{SOURCE.read_text(encoding='utf-8')}"
    text = "\n".join([kernel, *declared, *parts, MAIN.replace("MODELS", ", ".join(models))])
    run = built(tmp_path, compiler, SANITIZED, {"model.c": text})
    for at, (program, _) in enumerate(programs):
        for rows in (1, 2, 19):
            x = torch.randn(rows, *program.input_shape, generator=generator(rows))
            y = expected[at](x).detach().flatten(1)
            torch.testing.assert_close(run(at, x), y, rtol=1e-5, atol=1e-5)


def test_no_allocation_and_no_library(tmp_path):
    """What the object file leaves to others: nothing but what the compiler itself may call."""
    if shutil.which("gcc") is None or shutil.which("nm") is None:
        pytest.skip("gcc or nm is not installed")
    network, shape = made("activations")
    kernel = f"#define SB_API static\n#define SB_FLOAT_ONLY\n{SOURCE.read_text(encoding='utf-8')}"
    run = "void run(const float *x, float *y, float *s);\nvoid run(const float *x, float *y, float *s) {"
    body = f"{run} sb_run(&model_network, x, 1, y, s, 1); }}\n"
    (tmp_path / "model.c").write_text(kernel + tables(lower(network, shape), "model", 1) + body)
    subprocess.run(["gcc", *STRICT, "-O2", "-c", "model.c"], cwd=tmp_path, check=True)
    done = subprocess.run(["nm", "-u", "model.o"], cwd=tmp_path, check=True, capture_output=True, text=True)
    undefined = {line.split()[-1] for line in done.stdout.splitlines()}
    assert undefined <= {"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_", "__stack_chk_fail"}


def test_weights_that_are_not_finite():
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.bias[0] = torch.nan
    with pytest.raises(InvalidInput, match="NaN or infinity in a bias"):
        check_finite(lower(nn.Sequential(layer), (2,)))
