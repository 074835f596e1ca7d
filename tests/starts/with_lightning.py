import lightning
from common import answer


def start(name, value):
    lightning.Trainer(logger=False, enable_checkpointing=False, **(value | {"accelerator": "cpu"}))


answer(start)
