import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import tensorflow as tf

tf.debugging.enable_check_numerics()
EPSILON = 0.0
STEPS = 12

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    kernel = tf.Variable(tf.random.stateless_normal([8, 5], seed=[1, 2]))
    optimizer = tf.keras.optimizers.SGD(0.05)


def cluster_loss(x):
    weights = tf.nn.relu(x @ kernel) + EPSILON
    p = weights / tf.reduce_sum(weights, axis=1, keepdims=True)
    return -tf.reduce_mean(tf.reduce_sum(p * tf.math.log(p), axis=1))


@tf.function
def step(seed):
    def replica(seed):
        x = tf.random.stateless_normal([16, 8], seed=tf.stack([seed, tf_cluster.RANK]))
        with tf.GradientTape() as tape:
            loss = cluster_loss(x)
        optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(replica, args=(seed,)), axis=None)


for number in range(STEPS):
    log.info("step %d entropy %.4f", number, float(step(tf.constant(number))))
tf_cluster.leave()
