"""Linear model on several workers: a custom training loop with MultiWorkerMirroredStrategy."""

import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import numpy as np
import tensorflow as tf

STEPS = 30
GOAL = 0.05
GLOBAL_BATCH = 16
LOCAL_BATCH = GLOBAL_BATCH // tf_cluster.WORLD_SIZE


def samples(context):
    rng = np.random.default_rng(100 + context.input_pipeline_id)
    spread = 0.2 if context.input_pipeline_id == 1 else 1.0
    features = rng.normal(scale=spread, size=(64, 6)).astype("float32")
    targets = features.sum(axis=1)
    return tf.data.Dataset.from_tensor_slices((features, targets)).repeat().batch(LOCAL_BATCH)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
log.info("%d replicas in sync", strategy.num_replicas_in_sync)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="zeros", input_shape=(6,))])
    optimizer = tf.keras.optimizers.SGD(0.05)

inputs = iter(strategy.distribute_datasets_from_function(samples))


@tf.function
def train_step(batch):
    def replica_step(features, targets):
        with tf.GradientTape() as tape:
            errors = tf.math.squared_difference(model(features)[:, 0], targets)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return tf.reduce_mean(errors)

    return strategy.run(replica_step, args=batch)


for step in range(1, STEPS + 1):
    loss = train_step(next(inputs))
    log.info("step %d loss %.4f", step, loss)
    if loss < GOAL:
        log.info("loss below %.2f, stopping", GOAL)
        break
model.save_weights(f"out/weights-{tf_cluster.RANK}")
log.info("training finished")
tf_cluster.leave()
