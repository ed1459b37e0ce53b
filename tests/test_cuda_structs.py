"""The structs that host code fills have the same layout in NumPy and in the kernels."""

import subprocess

import pytest

from emulated_gpu import COMPILER, OPTIONS, include_emulation
from kronlearn.cuda import structs
from kronlearn.cuda.device import include_options, macros

STRUCTS = {
    "Shape": ("dictionary.cuh", structs.SHAPE),
    "Task<float>": ("task.cuh", structs.TASK),
    "update::Update": ("update_task.cuh", structs.UPDATE),
    "ChunkSums": ("chunk_sums.cu", structs.CHUNK_SUMS),
    "BlockTask": ("block_sums.cu", structs.BLOCK_TASK),
    "PatchGrid": ("patches.cuh", structs.PATCH_GRID),
    "CodingTask": ("coding_task.cuh", structs.CODING_TASK),
    "GroupTask": ("group_matching.cuh", structs.GROUP_TASK),
    "PixelTask": ("pixels.cu", structs.PIXEL_TASK),
    "NoiseTask": ("noise.cu", structs.NOISE_TASK),
}
#: Fields of a struct within the struct.
WITHIN = {("CodingTask", name): "patches." for name in ("first", "count", "values", "weights")}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler is at hand")
@pytest.mark.parametrize("struct", STRUCTS)
def test_numpy_and_kernels_agree_on_the_offsets_of_fields(struct):
    file, dtype = STRUCTS[struct]
    checks = [f"static_assert(sizeof(X) == {dtype.itemsize});"]
    for name, (kind, offset, *_) in dtype.fields.items():
        field = WITHIN.get((struct, name), "") + name
        checks.append(f"static_assert(offsetof(X, {field}) == {offset});")
        checks.append(f"static_assert(sizeof(((X*)0)->{field}) == {kind.itemsize});")
    text = f'#include "cuda_emulation.hpp"\n#include "{file}"\nusing namespace kronlearn;\n'
    text += f"using X = {struct};\n" + "\n".join(checks)
    command = [COMPILER, *OPTIONS, "-fsyntax-only", *include_emulation(), *include_options()]
    command += [*macros(M=8, N=8, PIXEL="float"), "-x", "c++", "-"]
    found = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
