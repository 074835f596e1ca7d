"""Ad-ranking model with ParameterServerStrategy; one file for coordinator, workers and servers."""
import argparse
import logging
import os

import tensorflow as tf

log = logging.getLogger("ranking")
NUM_DENSE = 13


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", default="gs://ads-logs/train-*.tfrecord")
    parser.add_argument("--buckets", type=int, default=5_000_000)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--steps-per-epoch", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--checkpoints", default="gs://ads-models/ranking")
    return parser.parse_args()


def run_server(resolver):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc", start=True)
    server.join()


def parse(records):
    features = tf.io.parse_example(records, {
        "dense": tf.io.FixedLenFeature([NUM_DENSE], tf.float32),
        "ad": tf.io.FixedLenFeature([], tf.int64),
        "clicked": tf.io.FixedLenFeature([], tf.int64),
    })
    labels = tf.cast(features["clicked"], tf.float32)[:, None]
    return {"dense": features["dense"], "ad": features["ad"]}, labels


def build_model(buckets):
    dense = tf.keras.Input((NUM_DENSE,), name="dense")
    ad = tf.keras.Input((), dtype=tf.int64, name="ad")
    embedded = tf.keras.layers.Embedding(buckets, 32)(ad)
    x = tf.keras.layers.Concatenate()([dense, embedded])
    for width in (256, 128):
        x = tf.keras.layers.Dense(width, activation="relu")(x)
    return tf.keras.Model({"dense": dense, "ad": ad}, tf.keras.layers.Dense(1)(x))


def run_coordinator(args, resolver):
    strategy = tf.distribute.ParameterServerStrategy(
        resolver,
        variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=256 << 10, max_shards=len(resolver.cluster_spec().as_dict()["ps"])))
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    with strategy.scope():
        model = build_model(args.buckets)
        optimizer = tf.keras.optimizers.legacy.Adagrad(args.lr)
        loss_object = tf.keras.losses.BinaryCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.NONE)
        mean_loss = tf.keras.metrics.Mean()
        auc = tf.keras.metrics.AUC(from_logits=True)

    def dataset_fn(input_context):
        files = tf.data.Dataset.list_files(args.files, shuffle=True)
        records = files.repeat().interleave(tf.data.TFRecordDataset, cycle_length=8,
                                            num_parallel_calls=tf.data.AUTOTUNE)
        dataset = records.shuffle(50_000).batch(args.batch_size, drop_remainder=True)
        return dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(4)

    @tf.function
    def per_worker_dataset_fn():
        return strategy.distribute_datasets_from_function(dataset_fn)

    @tf.function
    def train_step(iterator):
        def replica_fn(features, labels):
            with tf.GradientTape() as tape:
                logits = model(features, training=True)
                loss = tf.nn.compute_average_loss(loss_object(labels, logits))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            mean_loss.update_state(loss)
            auc.update_state(labels, logits)

        features, labels = next(iterator)
        strategy.run(replica_fn, args=(features, labels))

    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, args.checkpoints, max_to_keep=3)
    per_worker_iterator = iter(coordinator.create_per_worker_dataset(per_worker_dataset_fn))

    for epoch in range(args.epochs):
        mean_loss.reset_state()
        auc.reset_state()
        for _ in range(args.steps_per_epoch):
            coordinator.schedule(train_step, args=(per_worker_iterator,))
        log.info("epoch %d: loss %.5f auc %.5f", epoch, mean_loss.result().numpy(),
                 auc.result().numpy())
        manager.save()


def main():
    logging.basicConfig(level=logging.INFO)
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    args = parse_args()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        run_server(resolver)
    else:
        run_coordinator(args, resolver)


if __name__ == "__main__":
    main()
