from models.multitask import MultiTask

__all__ = ["MultiTask"]
