"""What torch's reduction kernel takes beside its result: when blocks share an output, each writes its part to memory.

The launch is worked out as aten/src/ATen/native/cuda/Reduce.cuh does (setReduceConfig, global_memory_size). A sum over
the rows of a large matrix, which the gradient of every bias is, takes a hundred megabytes for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence

THREADS = 512
THREADS_A_PROCESSOR = 2048
LEAST, MOST = 16, 256
"""Values for each thread."""
WARP = 32


def sizes(shape: Sequence[int], reduced: Sequence[int], sum_item: int, processors: int) -> list[int]:
    """Bytes beside the result for a dense tensor: parts of outputs, and a counter for each block."""
    single, along = _merged(shape, reduced)
    outputs = _product([size for size, gone in zip(shape, _gone(shape, reduced), strict=True) if not gone])
    inputs = _product(shape) // max(outputs, 1)
    if not outputs or inputs <= 1:
        return []
    width, height, vector = _first_shape(outputs, inputs, along, single)
    threads, block_width, block_height = _block(width, height, vector)
    step_in, step_out = (block_width, 1) if along else (1, block_width)
    if _up(inputs, step_in) >= min(block_height * LEAST, MOST):
        step_in, split = step_in * block_height, True
    else:
        step_out, split = step_out * block_height, False
    each = _up(inputs, step_in)
    grid = _up(outputs // vector, step_out)
    target = processors * (THREADS_A_PROCESSOR // threads)
    if not split or each < MOST or grid > target:
        return []
    shares = max(min(_up(target, grid), _up(each, LEAST)), _up(each, MOST))
    if shares <= 1:
        return []
    parts = sum_item * outputs * shares * (1 if along else block_width * vector)
    return [parts, 4 * grid]


def _first_shape(outputs: int, inputs: int, along: bool, single: bool) -> tuple[int, int, int]:
    """Width and height that the block may have, and how many outputs a thread loads at once."""
    if along:
        return (inputs // 4 if single and inputs > 128 else inputs), outputs, 1
    vector = next(n for n in (4, 2, 1) if outputs % n == 0)
    return outputs // vector, inputs, vector


def _block(width: int, height: int, vector: int) -> tuple[int, int, int]:
    most = THREADS // vector
    wide, high = (_power(size) if size < most else most for size in (width, height))
    block_width = min(wide, WARP)
    block_height = min(high, most // block_width)
    block_width = min(wide, most // block_height)
    return block_width * block_height, block_width, block_height


def _merged(shape: Sequence[int], reduced: Sequence[int]) -> tuple[bool, bool]:
    """Whether everything is summed (one dimension is left), and whether the fastest dimension is."""
    gone = [flag for size, flag in zip(shape, _gone(shape, reduced), strict=True) if size > 1]
    return all(gone), bool(gone) and gone[-1]


def _gone(shape: Sequence[int], reduced: Sequence[int]) -> list[bool]:
    places = {place % len(shape) for place in reduced} if reduced else set(range(len(shape)))
    return [place in places for place in range(len(shape))]


def _product(sizes: Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _power(size: int) -> int:
    return 1 << (max(size, 1).bit_length() - 1)


def _up(size: int, by: int) -> int:
    return -(-size // by)
