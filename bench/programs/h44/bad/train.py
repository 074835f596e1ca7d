"""Click-through model, several hosts, tf.distribute.MultiWorkerMirroredStrategy (TF_CONFIG is set by the operator)."""
import argparse
import os

import tensorflow as tf

NUMERIC = 13
CATEGORICAL = 26


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--files", default="/mnt/nfs/ctr/train-*.tfrecord")
    p.add_argument("--examples", type=int, default=40_000_000)
    p.add_argument("--global-batch", type=int, default=16384)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--backup-dir", default="/mnt/nfs/ctr/backup")
    p.add_argument("--model-dir", default="/mnt/nfs/ctr/model")
    return p.parse_args()


def parse(records):
    spec = {"num": tf.io.FixedLenFeature([NUMERIC], tf.float32),
            "cat": tf.io.FixedLenFeature([CATEGORICAL], tf.int64),
            "click": tf.io.FixedLenFeature([1], tf.float32)}
    ex = tf.io.parse_example(records, spec)
    return {"num": ex["num"], "cat": ex["cat"]}, ex["click"]


def make_dataset_fn(pattern, global_batch):
    def dataset_fn(input_context):
        files = tf.data.Dataset.list_files(pattern, shuffle=False)
        ds = files.interleave(tf.data.TFRecordDataset, cycle_length=8, deterministic=True)
        ds = ds.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        ds = ds.shuffle(500_000).repeat()
        ds = ds.batch(global_batch, drop_remainder=True)
        return ds.map(parse, num_parallel_calls=tf.data.AUTOTUNE).prefetch(4)
    return dataset_fn


def build_model(buckets=1_000_000, dim=16):
    num = tf.keras.Input((NUMERIC,), name="num")
    cat = tf.keras.Input((CATEGORICAL,), dtype=tf.int64, name="cat")
    emb = tf.keras.layers.Flatten()(tf.keras.layers.Embedding(buckets, dim)(cat))
    x = tf.keras.layers.Concatenate()([num, emb])
    for width in (512, 256, 64):
        x = tf.keras.layers.Dense(width, activation="relu")(x)
    return tf.keras.Model([num, cat], tf.keras.layers.Dense(1, activation="sigmoid")(x))


def is_chief(task_type, task_id):
    return task_type is None or task_type == "chief" or (task_type == "worker" and task_id == 0)


def write_path(base, task_type, task_id):
    if is_chief(task_type, task_id):
        return base
    return os.path.join(os.path.dirname(base), f"workertemp_{task_id}")


def main():
    args = parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    task_type, task_id = resolver.task_type, resolver.task_id

    dataset = strategy.distribute_datasets_from_function(make_dataset_fn(args.files, args.global_batch))
    with strategy.scope():
        model = build_model()
        model.compile(optimizer=tf.keras.optimizers.Adam(args.lr), loss="binary_crossentropy",
                      metrics=[tf.keras.metrics.AUC(name="auc")])

    model.fit(
        dataset,
        steps_per_epoch=args.examples // args.global_batch,
        epochs=args.epochs,
        callbacks=[tf.keras.callbacks.BackupAndRestore(args.backup_dir)],
        verbose=2 if is_chief(task_type, task_id) else 0)

    path = write_path(args.model_dir, task_type, task_id)
    model.save(path)
    if not is_chief(task_type, task_id):
        tf.io.gfile.rmtree(path)


if __name__ == "__main__":
    main()
