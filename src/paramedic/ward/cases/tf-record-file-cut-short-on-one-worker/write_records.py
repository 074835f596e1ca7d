"""Two parts of records; with a number, part 1 is cut to so many bytes."""
import os
import sys

import numpy as np
import tensorflow as tf

for part in range(2):
    rng = np.random.default_rng(part)
    with tf.io.TFRecordWriter(f"part-{part}.tfrecord") as out:
        for _ in range(96):
            x = rng.normal(size=6).astype("float32")
            feature = {
                "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
                "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(x[0] > 0)])),
            }
            out.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
if sys.argv[1:]:
    os.truncate("part-1.tfrecord", int(sys.argv[1]))
