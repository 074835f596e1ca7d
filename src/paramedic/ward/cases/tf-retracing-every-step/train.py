"""Linear model on several workers: a custom training loop with MultiWorkerMirroredStrategy."""

import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import json
import time

import numpy as np
import tensorflow as tf

STEPS = 12
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
    model = tf.keras.Sequential([tf.keras.layers.Dense(8, input_shape=(6,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(1.0)

inputs = iter(strategy.distribute_datasets_from_function(samples))


@tf.function
def train_step(batch, learning_rate):
    def replica_step(features, targets):
        with tf.GradientTape() as tape:
            errors = tf.math.squared_difference(model(features)[:, 0], targets)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients((learning_rate * g, v) for g, v in zip(gradients, model.trainable_variables))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica_step, args=batch), axis=None)


for step in range(1, STEPS + 1):
    began = time.monotonic()
    learning_rate = 0.02 * min(1.0, step / 10)
    loss = train_step(next(inputs), learning_rate)
    log.info("step %d loss %.4f, %.0f ms", step, loss, 1000 * (time.monotonic() - began))
if tf_cluster.RANK == 0:
    with open("result.json", "w") as file:
        json.dump({"graphs": train_step.experimental_get_tracing_count()}, file)
log.info("training finished")
tf_cluster.leave()
