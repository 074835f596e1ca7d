from .transforms import Normalize
