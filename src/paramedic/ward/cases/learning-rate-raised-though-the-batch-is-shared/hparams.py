"""Found by a sweep on one device."""

BASE_LR = 0.11
GLOBAL_BATCH = 64
MOMENTUM = 0.9
STEPS = 160
WARMUP = 10


def learning_rate(world_size):
    return BASE_LR * world_size


def local_batch(world_size):
    assert GLOBAL_BATCH % world_size == 0
    return GLOBAL_BATCH // world_size
