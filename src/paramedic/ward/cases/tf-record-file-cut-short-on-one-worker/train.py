import tf_cluster

tf_cluster.configure()
log = tf_cluster.logger()

import tensorflow as tf

SPEC = {"x": tf.io.FixedLenFeature([6], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}


def parse(record):
    row = tf.io.parse_single_example(record, SPEC)
    return row["x"], row["y"]


def dataset(context):
    part = context.input_pipeline_id
    log.info("reading part-%d.tfrecord", part)
    records = tf.data.TFRecordDataset(f"part-{part}.tfrecord")
    return records.map(parse).batch(8, drop_remainder=True).repeat()


strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(2)])
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
model.fit(strategy.distribute_datasets_from_function(dataset), epochs=2, steps_per_epoch=12, verbose=2)
log.info("fit done")
tf_cluster.leave()
