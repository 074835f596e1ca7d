"""EfficientNet on TFRecords with MultiWorkerMirroredStrategy.

Every host runs this file with its own TF_CONFIG (see start.sh).
"""
import argparse
import json
import os

import tensorflow as tf

AUTOTUNE = tf.data.AUTOTUNE
SIZE = 224


def parse(record):
    features = tf.io.parse_single_example(record, {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/label": tf.io.FixedLenFeature([], tf.int64),
    })
    image = tf.io.decode_jpeg(features["image/encoded"], channels=3)
    image = tf.image.resize(image, (SIZE, SIZE))
    image = tf.image.random_flip_left_right(image)
    return image, features["image/label"]


def make_dataset_fn(args, global_batch):
    def dataset_fn(input_context):
        batch_size = input_context.get_per_replica_batch_size(global_batch)
        files = tf.data.Dataset.from_tensor_slices(sorted(tf.io.gfile.glob(args.train_files)))
        files = files.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
        files = files.shuffle(1024, seed=args.seed).repeat()
        records = files.interleave(tf.data.TFRecordDataset, cycle_length=8,
                                   num_parallel_calls=AUTOTUNE)
        records = records.shuffle(8192, seed=args.seed)
        dataset = records.map(parse, num_parallel_calls=AUTOTUNE)
        return dataset.batch(batch_size, drop_remainder=True).prefetch(AUTOTUNE)

    return dataset_fn


def build_model(num_classes, lr):
    model = tf.keras.applications.EfficientNetB0(weights=None, classes=num_classes,
                                                 classifier_activation=None)
    model.compile(
        optimizer=tf.keras.optimizers.SGD(lr, momentum=0.9, nesterov=True),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-files", default="gs://retail-images/train-*.tfrecord")
    parser.add_argument("--num-train", type=int, default=1_200_000)
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--batch-per-replica", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--lr-per-256", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--job-dir", default="gs://retail-models/effnet")
    return parser.parse_args()


def main():
    args = parse_args()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.random.set_seed(args.seed)
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    is_chief = task["type"] == "chief" or (task["type"] == "worker" and task["index"] == 0)

    global_batch = args.batch_per_replica * strategy.num_replicas_in_sync
    steps_per_epoch = args.num_train // global_batch
    peak = args.lr_per_256 * global_batch / 256
    schedule = tf.keras.optimizers.schedules.CosineDecay(
        0.0, steps_per_epoch * (args.epochs - 5), warmup_target=peak,
        warmup_steps=5 * steps_per_epoch)

    train_ds = strategy.distribute_datasets_from_function(make_dataset_fn(args, global_batch))
    with strategy.scope():
        model = build_model(args.num_classes, schedule)

    callbacks = [
        tf.keras.callbacks.BackupAndRestore(os.path.join(args.job_dir, "backup")),
        tf.keras.callbacks.ModelCheckpoint(
            os.path.join(args.job_dir, "weights", "epoch-{epoch:03d}"), save_weights_only=True),
    ]
    model.fit(
        train_ds,
        epochs=args.epochs,
        steps_per_epoch=steps_per_epoch,
        callbacks=callbacks,
        verbose=2 if is_chief else 0,
    )


if __name__ == "__main__":
    main()
