"""Linear model on several workers: a custom training loop with MultiWorkerMirroredStrategy."""

import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import os

import numpy as np
import tensorflow as tf

STEPS = 4
GLOBAL_BATCH = 16
LOCAL_BATCH = GLOBAL_BATCH // tf_cluster.WORLD_SIZE


def samples(context):
    rng = np.random.default_rng(100 + context.input_pipeline_id)
    features = rng.normal(size=(64, 6)).astype("float32")
    targets = features.sum(axis=1)
    return tf.data.Dataset.from_tensor_slices((features, targets)).repeat().batch(LOCAL_BATCH)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
log.info("%d replicas in sync", strategy.num_replicas_in_sync)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(20000, input_shape=(6,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(1e-5)

# every worker takes part in a save; only the chief's files are kept
folder = "checkpoints" if tf_cluster.RANK == 0 else f"out/worker-{tf_cluster.RANK}"
manager = tf.train.CheckpointManager(tf.train.Checkpoint(model=model, optimizer=optimizer), folder, max_to_keep=1)
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
    if step % 2 == 0:
        log.info("saved %s", manager.save())
log.info("training finished")
tf_cluster.leave()
