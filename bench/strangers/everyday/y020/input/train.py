import tensorflow as tf
from unet import build_unet
from data import make_ds
tf.keras.mixed_precision.set_global_policy("mixed_float16")
strategy = tf.distribute.MirroredStrategy()
GLOBAL = 16 * strategy.num_replicas_in_sync
with strategy.scope():
    model = build_unet(depth=6, base=48, out_dtype="float32")
    opt = tf.keras.optimizers.Adam(1e-4)
    bce = tf.keras.losses.BinaryCrossentropy(reduction=tf.keras.losses.Reduction.NONE)

def replica_step(x, y):
    with tf.GradientTape() as tape:
        p = model(x, training=True)
        loss = tf.nn.compute_average_loss(tf.reduce_mean(bce(y, p), axis=[1, 2]), global_batch_size=GLOBAL)
    g = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip(g, model.trainable_variables))
    zero = tf.add_n([tf.math.count_nonzero(tf.equal(t, 0)) for t in g]) / tf.cast(sum(v.shape.num_elements() for v in model.trainable_variables), tf.int64)
    return loss, tf.linalg.global_norm(g), tf.cast(zero, tf.float32)
# ...
