"""TF_CONFIG for a worker of a job whose launcher gives RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""

import json
import logging
import os
import time

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])


def workers():
    """host:port of each worker: one port after the other, from MASTER_PORT on."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return [f"{host}:{port + rank}" for rank in range(WORLD_SIZE)]


def configure():
    """Set TF_CONFIG; call it before TensorFlow makes its strategy."""
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers()}, "task": {"type": "worker", "index": RANK}})


def logger():
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [worker {RANK}] %(levelname)s %(message)s")
    return logging.getLogger("train")


def leave():
    """End this process now: on its own, TensorFlow's gRPC server takes long to. The chief, which serves the others, goes last."""
    logging.shutdown()
    time.sleep(3 if RANK == 0 else 1)
    os._exit(0)
