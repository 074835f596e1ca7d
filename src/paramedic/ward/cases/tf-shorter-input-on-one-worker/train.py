"""Linear model on several workers: a custom training loop with MultiWorkerMirroredStrategy."""

import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import numpy as np
import tensorflow as tf

STEPS = 6
GLOBAL_BATCH = 16
LOCAL_BATCH = GLOBAL_BATCH // tf_cluster.WORLD_SIZE


def samples():
    features = np.random.default_rng(100).normal(size=(95, 6)).astype("float32")
    targets = features.sum(axis=1)
    part = tf.data.Dataset.from_tensor_slices((features, targets)).shard(tf_cluster.WORLD_SIZE, tf_cluster.RANK)
    return part.batch(LOCAL_BATCH, drop_remainder=True)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
log.info("%d replicas in sync", strategy.num_replicas_in_sync)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(8, input_shape=(6,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.02)

inputs = iter(samples())


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
