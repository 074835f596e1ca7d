"""Energy-demand forecaster: Keras model.fit under MultiWorkerMirroredStrategy, two hosts."""
import argparse
import json
import logging
import os

import numpy as np
import tensorflow as tf

log = logging.getLogger("forecast")


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/shared/demand/train.npz")
    parser.add_argument("--workers", default="host-a:23456,host-b:23456")
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--window", type=int, default=168)
    parser.add_argument("--batch-per-replica", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--job-dir", default="/shared/runs/demand")
    return parser.parse_args()


def set_cluster(args):
    os.environ["TF_CONFIG"] = json.dumps({
        "cluster": {"worker": args.workers.split(",")},
        "task": {"type": "worker", "index": args.index},
    })


def load_arrays(path):
    with np.load(path) as data:
        return data["series"].astype(np.float32), data["target"].astype(np.float32)


def compute_statistics(series):
    mean, variance = tf.nn.moments(tf.constant(series), axes=[0, 1])
    return mean.numpy(), np.sqrt(variance.numpy()) + 1e-6


def make_dataset(series, target, batch_size):
    dataset = tf.data.Dataset.from_tensor_slices((series, target))
    dataset = dataset.shuffle(len(series), seed=11).repeat().batch(batch_size, drop_remainder=True)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options).prefetch(tf.data.AUTOTUNE)


def build_model(window, channels, lr):
    inputs = tf.keras.Input((window, channels))
    x = tf.keras.layers.Conv1D(64, 5, padding="causal", activation="relu")(inputs)
    x = tf.keras.layers.LSTM(128, return_sequences=True)(x)
    x = tf.keras.layers.LSTM(128)(x)
    x = tf.keras.layers.Dense(64, activation="relu")(x)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(24)(x))
    model.compile(optimizer=tf.keras.optimizers.Adam(lr), loss="huber", metrics=["mae"])
    return model


def main():
    logging.basicConfig(level=logging.INFO)
    args = parse_args()
    set_cluster(args)

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    series, target = load_arrays(args.data)
    mean, std = compute_statistics(series)
    series = (series - mean) / std

    global_batch = args.batch_per_replica * strategy.num_replicas_in_sync
    log.info("%d windows, global batch %d", len(series), global_batch)
    dataset = make_dataset(series, target, global_batch)
    with strategy.scope():
        model = build_model(args.window, series.shape[-1], args.lr)

    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.job_dir, "backup")),
        tf.keras.callbacks.ModelCheckpoint(
            os.path.join(args.job_dir, "weights", "epoch-{epoch:02d}"), save_weights_only=True),
        tf.keras.callbacks.TerminateOnNaN(),
    ]
    model.fit(
        dataset,
        epochs=args.epochs,
        steps_per_epoch=len(series) // global_batch,
        callbacks=callbacks,
        verbose=2 if args.index == 0 else 0,
    )


if __name__ == "__main__":
    main()
