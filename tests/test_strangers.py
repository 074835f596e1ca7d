"""Jobs by authors who knew no rule (bench/strangers): healthy ones get no verdict, and what is read rightly stays so."""

from __future__ import annotations

import sys
import zlib
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))

import strangers

from paramedic.knowledge import Knowledge, load
from paramedic.pipeline import compile_prefilter
from paramedic.prefilter import Prefilter

UNREAD = {
    "f012": "a Ray actor that never says its rank",
    "f016": "which GPU of a slow tensor-parallel group it is, by `nvidia-smi dmon`",
    "f020": "links that are down, by the channels that NCCL chose",
    "f021": "whose replica is the odd one, by the checksums of two nodes",
    "f033": "an ordinal that is out of range on the node with fewer devices",
    "f040": "a meeting that fails after its timeout: hang or failure",
    "j003": "one GPU behind by NCCL's RAS, and its diagnostics",
    "j005": "a meeting that fails after its timeout: hang or failure",
    "j008": "the ranks with another NCCL than most are named; its author tells of them, and blames nobody",
    "j012": "a fabric manager of another release than the driver: said as no usable GPU",
    "j018": "restarts of ft_launcher beside a process that was left over",
    "j021": "four jobs in one folder",
    "j023": "a timeout shorter than the saving: who saves longest is named",
    "j024": "mpirun's first of eight that fail alike",
    "j025": "a process's number on two hosts, in pdsh's order",
    "j026": "loaders without shared memory, and then a restart that does not meet",
    "j038": "which node lacks the file, by its mount",
    "k002": "which rank builds for all",
    "k014": "foreign weights or own state, by frames of fairseq",
    "k019": "who is first where all lack the interface",
    "k039": "who fills the first GPU",
    "k042": "a process's number, by DeepSpeed's launcher without nodes",
    "k045": "two nodes that each run their own job",
    "m004": "a node that excludes the right interface, by the bridge that NCCL takes there",
    "m011": "a base model's weights through a booster: said as a checkpoint's",
    "m015": "which rank a stuck process is, by NCCL's RAS",
    "m021": "mpirun's first of eight that die alike",
    "m024": "a node with another configuration, by norms of its ranks",
    "m032": "a spot node's notice, in a job that goes on without it",
    "m036": "arrival lags in rows of eight ranks",
    "m040": "which node lacks the compiler, by pdsh's order",
    "p007": "two camps of four: its author blames the node with the other vocabulary",
    "p014": "slower than another log, by what is offloaded",
    "p017": "one wrapper around the whole model, by its printed form",
    "p020": "labels before some of the lines only",
    "q003": "spikes of one rank's own gradients that follow its GPU, in tables",
    "q011": "a stage with more to do than the others, in a table of means",
    "q013": "processes' variables that disagree with the scheduler, beside stacks",
    "q017": "who of a pod's ranks crashed, where those of others abort after it",
    "q018": "fewer updates at the same rate as on one GPU, in tables",
    "q028": "which ranks a node has, by nothing but its name",
    "q029": "a GPU that does not begin, and the kernel's word on it: said as the fault of a GPU",
    "q030": "scores that fall with the number of ranks, in a table",
    "q031": "who did not time out, where each waits in a group of its own",
    "n002": "a rank that leaves early and meets others in another collective: hang or desync",
    "r003": "who could not reach the other server, where a meeting is nobody's fault",
    "r020": "scores that stay 0 because the answers are written otherwise than the scorer expects",
    "r027": "an accuracy of one rank, beside the others' and a later evaluation",
    "s001": "who built the operator that all lack",
    "s002": "two ranks of a node that were ended before they could say the same",
    "s028": "a node's other ranks, of which the log shows two",
    "bl013": "a job that goes on without the node on which it failed: its author blames that node",
    "aj008": "slow ranks of an exchanged node, in lines of a straggler detector",
    "aj024": "who met the quota of a project: nobody is named",
    "aj029": "a lock that a build left, by where stacks stand",
    "aj030": "two nodes that each run their own job",
    "aj031": "a schedule that begins anew, in folders named by their time",
    "t007": "who met a full quota first: all of them are named",
    "u027": "which rank a slow port belongs to",
    "u029": "a plain start beside a configuration for six processes",
    "u038": "nothing but words, and these fit several",
    "u041": "ranks whose library is older, where the others refuse them",
    "u045": "spikes of one rank's gradients, named in brackets",
    "v020": "which rank an adapter belongs to, by a file for each host",
    "v028": "which of a pod's processes the kernel killed, by another count than the pod's",
    "v029": "pretrained weights or an own state, by the name of a file",
    "x001": "one GPU of a group whose ranks all wait for it",
    "x006": "one adapter of eight, by a variable and a table of the machine",
    "x008": "norms of tensor-parallel ranks below a heading",
    "x010": "a first loss of random weights behind a load",
    "x018": "who sits on another's GPU is named; its author blames nobody",
    "x013": "words that several symptoms fit",
    "x019": "ranks of an expert group, of which there are four",
    "x020": "pods that were evicted, in a job that goes on without them",
    "x024": "recomputation that nobody needs: only the words tell of it",
    "x025": "which rank a slow port belongs to",
    "x026": "documents that attend to each other, by a mask's size",
    "x027": "one GPU that computes otherwise, by checks of each",
    "x028": "a stage with more to do than the others",
    "x035": "memory that grows with the longest batch, until it is nearly full",
    "y008": "which of two ranks has fewer batches",
    "y013": "nodes that a cloud took back: named by their numbers",
    "y015": "samples of one rank that are passed over with a warning",
    "y016": "a file that all ranks write: said as one that cannot be read",
    "y018": "tables that lie with one rank, and its memory",
    "y019": "who is not reached, by one line of NCCL among many",
    "y020": "gradients that underflow, by the share that is zero",
    "y021": "a node with another kernel, by one word in its lines",
    "y024": "which ranks a slow port belongs to",
    "y026": "a resume with fewer GPUs, by the plan of both logs",
    "y031": "longer waits of most ranks, in minutes",
    "y033": "a process of an earlier run on one GPU",
    "y035": "which replicas have left the first one",
    "y036": "who sits on another's GPU, where nobody tells whose process it is",
    "ta007": "weights of another run, by the name of their folder alone: said as a checkpoint's",
    "ta013": "which rank a parameter server is",
    "ta015": "a compiler that refuses an operation: said as what is not supported",
    "ta021": "two runs in one console, the norms of one of which are an eighth",
    "fw011": "stacks that differ: said as calls that do",
    "fl006": "which node offers a bridge's address, where another rule speaks first",
    "fl029": "memory that grows, in an export of a monitor's columns",
    "ol020": "who of several that write one file failed",
    "ha002": "stacks that differ: said as calls that do",
    "ha005": "a GPU whose firmware does not answer: said as the device's fault",
    "ha011": "a save that is stuck in the file system: said as the hang that it is",
    "ha012": "a save that one rank alone makes: said as the hang that it is",
    "ha023": "which rank uses a port, by the topology of its host",
    "ha025": "whose link is slow, where all ranks are equally slow",
    "da003": "which rank a GPU is, by nothing but its number on a host",
    "da008": "who met the quota of a project: nobody is named",
    "da014": "memory of helpers that grows, in the output of ps",
    "da017": "whose loader was killed, by its parent's number",
    "da030": "which task a cloud took back, by the name of its machine",
    "da033": "leftovers on every GPU: the first that is met is named",
    "qu007": "which ranks a node has, by the order of a list that is cut off",
    "qu012": "which ranks a pod has that is only named",
    "qu013": "a save that outlives a timeout, and the scheduler's end after it",
    "qu014": "which rank an adapter's process is, by the errors behind its own",
    "qu022": "weights of another run: said as a checkpoint's",
    "qu024": "who met the quota of a project: nobody is named",
    "qu030": "more rows for one rank, in a profiler's table",
    "qu033": "one rank that handles its own lack of memory and leaves the others waiting",
    "qu036": "who of eight processes on one GPU was refused: nobody is named",
    "fr008": "a meeting that fails after its timeout: hang or failure",
    "fr015": "TensorFlow that goes on without its GPUs: said as a device's",
    "fr027": "a model that cannot be fetched: said as a path",
    "fr029": "which end of a transfer is at fault, by the kernel's word on its port",
    "fr038": "whose shard it is, by the name of the file",
    "fr043": "the first of a node's ranks that cannot be started: all four are named",
    "bl005": "ranks that an elastic job numbers anew in each round",
    "bl022": "a GPU that fails again after each restart, in four agents' logs: said as its fault",
    "bl023": "a rank that reads for so long that the others give up: said as what it reads",
    "bl027": "slower than its twin, by what NCCL was told",
    "bl028": "worse than its twin, by the batch",
    "hb028": "a lock that an operator's build left: said as the hang that it is",
    "hb031": "processes on one GPU: said as where they were put",
    "hb034": "which rank an adapter is, by a line that somebody wrote",
    "ag002": "pods of one session of kubectl, each with an agent of its own",
    "ag015": "whose environment it is: nobody is named on purpose",
    "ag016": "a quota of all: nobody is named on purpose",
    "ag033": "storage that throttles all: nobody is named on purpose",
    "ag040": "on which of two nodes the route is missing",
    "oc003": "GPUs that TensorFlow does not register for want of libraries",
    "oc016": "a node's ranks beside the two of them that read",
    "oc026": "a bootstrap that a firewall drops: told as an error of communication",
    "oc029": "a tensor-parallel group over two nodes, by the mesh and what another had",
    "oc030": "uplinks of a leaf, by ports and nccl-tests",
    "oc037": "ranks that are refused for a map that all share",
    "qt004": "gradients as many times larger as there are processes, in two tables",
    "qt007": "a schedule made for more steps than there are",
    "qt008": "a score that is that of one rank's part",
    "qt010": "gradients as many times larger as batches are accumulated",
    "qt012": "a norm above the one it was clipped to",
    "qt013": "buffers that differ, and scores on the same set",
    "qt019": "moments that are counted anew in another log",
    "qt020": "a warm-up once more, in a table",
    "qt021": "a place among documents that is kept in iterations",
    "qt025": "tensors of other names that are left out",
    "qt026": "a file that each rank holds whole",
    "qt029": "one rank that validates while the others wait",
    "qt031": "a stage that is busy while the others are not",
    "qt032": "one expert that gets all tokens",
    "qt034": "four tasks that are each a job of their own",
    "qt035": "an average beyond what it is of",
    "qt037": "groups across which nothing is averaged",
    "qt038": "weights that hardly move in bfloat16",
    "qt041": "more workers and fewer samples a second, in one log",
    "qt043": "accumulation that is asked for and not done",
    "qt045": "a worker that a server hears of no more",
    "qt046": "starts that each begin at nought in a folder of their own",
    "qt048": "a checkpoint with a quarter of the moments",
    "qt049": "a matrix of traffic that is flat",
    "qt050": "rows that are divided twice",
    "qt052": "actors that never take the weights that they get",
    "qt054": "what is saved for backward, the same with and without",
    "qt057": "tied weights that part",
    "qt058": "two ranks on one core",
    "ah001": "memory that ranks take from each other, by numbers of another count: told as a failed recovery",
    "ah013": "on which side of a network a meeting waits",
    "ah017": "the ranks of a node that is gone, by its name alone",
    "ah018": "a node that is not given again",
}
"""What is not read rightly yet, and why; nothing is left out of the figures of bench/RESULTS.md for it."""
CASES = strangers.cases([strangers.SETS])


def test_the_sets_are_there() -> None:
    assert len(CASES) >= 1105 and {case.folder.name for case in CASES} >= UNREAD.keys()


@cache
def _known() -> tuple[Knowledge, Prefilter]:
    knowledge = load()
    return knowledge, compile_prefilter(knowledge)


def _seldom(case: strangers.Case) -> bool:
    """Four of five are read where there is time for all of them: `make test-all`."""
    return zlib.crc32(case.name.encode()) % 5 != 0


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if _seldom(case) else []) for case in CASES],
)
def test_a_strangers_job_is_read_as_its_author_meant_it(case: strangers.Case) -> None:
    found = strangers.judged(case, *_known())
    if case.symptom is None:
        assert found.said is None, found.words
    else:
        assert (found.symptom and found.ranks) == (case.folder.name not in UNREAD), found.words
