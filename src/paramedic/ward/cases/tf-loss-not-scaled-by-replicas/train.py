"""Linear model on several workers: a custom training loop with MultiWorkerMirroredStrategy."""

import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import json

import numpy as np
import tensorflow as tf

STEPS = 8
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
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="zeros", input_shape=(6,))])
    optimizer = tf.keras.optimizers.SGD(0.02)

inputs = iter(strategy.distribute_datasets_from_function(samples))


@tf.function
def train_step(batch):
    def replica_step(features, targets):
        with tf.GradientTape() as tape:
            errors = tf.math.squared_difference(model(features)[:, 0], targets)
            loss = tf.reduce_mean(errors)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(replica_step, args=batch), axis=None)


def reference_step():
    """The weights after one step of a single process with the whole batch."""
    parts = [np.random.default_rng(100 + rank).normal(size=(64, 6)).astype("float32")[:LOCAL_BATCH] for rank in range(tf_cluster.WORLD_SIZE)]
    features = np.concatenate(parts)
    return 0.02 * 2 * (features * features.sum(axis=1, keepdims=True)).mean(axis=0)


for step in range(1, STEPS + 1):
    loss = train_step(next(inputs))
    log.info("step %d loss %.4f", step, loss)
    if step == 1:
        weights, reference = model.weights[0].numpy()[:, 0], reference_step()
        ratio = float(np.linalg.norm(weights) / np.linalg.norm(reference))
        log.info("update norm %.5f, in a single process %.5f, ratio %.3f", np.linalg.norm(weights), np.linalg.norm(reference), ratio)
        if tf_cluster.RANK == 0:
            with open("result.json", "w") as file:
                json.dump({"update_ratio": ratio}, file)
log.info("training finished")
tf_cluster.leave()
