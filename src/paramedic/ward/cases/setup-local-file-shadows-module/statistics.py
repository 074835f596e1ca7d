"""Count the labels of a shard: python statistics.py shard.txt"""

import sys
from collections import Counter


def label_counts(path):
    with open(path) as lines:
        return Counter(line.rsplit("\t", 1)[-1].strip() for line in lines)


if __name__ == "__main__":
    for label, count in label_counts(sys.argv[1]).most_common():
        print(f"{label:20} {count}")
