"""Linear model on several workers: a custom training loop with MultiWorkerMirroredStrategy."""

import glob

import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import tensorflow as tf

STEPS = 8
GLOBAL_BATCH = 16


def parse(line):
    values = tf.stack(tf.io.decode_csv(line, [0.0] * 7))
    return values[:6], values[6]


def samples():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    lines = tf.data.TextLineDataset(sorted(glob.glob("data/*.csv")))
    return lines.map(parse).repeat().batch(GLOBAL_BATCH).with_options(options)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
log.info("%d replicas in sync", strategy.num_replicas_in_sync)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(8, input_shape=(6,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.02)

inputs = iter(strategy.experimental_distribute_dataset(samples()))


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
