import numpy as np


class Normalize:
    """Per-channel standardisation, in double precision as the reference code did it."""

    def __init__(self, mean, std):
        self.mean = np.asarray(mean, dtype=np.float_)
        self.std = np.asarray(std, dtype=float)

    def __call__(self, sample):
        return ((sample - self.mean) / self.std).astype("float32")
