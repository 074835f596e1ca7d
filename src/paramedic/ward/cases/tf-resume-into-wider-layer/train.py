"""Continues training from the last checkpoint, on several workers."""

import argparse

import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import numpy as np
import tensorflow as tf
from model import build_model

STEPS = 4
GLOBAL_BATCH = 16
LOCAL_BATCH = GLOBAL_BATCH // tf_cluster.WORLD_SIZE

parser = argparse.ArgumentParser()
parser.add_argument("--units", type=int, default=16)
options = parser.parse_args()


def samples(context):
    rng = np.random.default_rng(100 + context.input_pipeline_id)
    features = rng.normal(size=(64, 6)).astype("float32")
    targets = features.sum(axis=1)
    return tf.data.Dataset.from_tensor_slices((features, targets)).repeat().batch(LOCAL_BATCH)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
log.info("%d replicas in sync", strategy.num_replicas_in_sync)

with strategy.scope():
    model = build_model(options.units)
    optimizer = tf.keras.optimizers.SGD(0.02)

checkpoint = tf.train.Checkpoint(model=model)
latest = tf.train.latest_checkpoint("checkpoints")
log.info("restoring %s", latest)
checkpoint.restore(latest).assert_existing_objects_matched()

inputs = iter(strategy.distribute_datasets_from_function(samples))


@tf.function
def train_step(batch):
    def replica_step(features, targets):
        with tf.GradientTape() as tape:
            errors = tf.math.squared_difference(model(features)[:, 0], targets)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=batch), axis=None)


for step in range(1, STEPS + 1):
    loss = train_step(next(inputs))
    log.info("step %d loss %.4f", step, loss)
log.info("training finished")
tf_cluster.leave()
