"""Programs whose scores are each rank's own, brought together wrongly, or counted too coarsely."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_file
from paramedic.detect.flow import Flow
from paramedic.detect.loops import at, hit
from paramedic.detect.origins import inner, own_part, reduced
from paramedic.detect.program import Function, Module, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value

_SIZES = frozenset(("size", "numel", "len", "dim", "shape", "ones_like", "zeros_like"))
_OF_ALL = frozenset(
    ("f1_score", "precision_score", "recall_score", "roc_auc_score", "average_precision_score", "r2_score",
     "matthews_corrcoef", "cohen_kappa_score", "fbeta_score", "jaccard_score", "spearmanr", "pearsonr", "kendalltau",
     "precision_recall_fscore_support", "corpus_bleu", "balanced_accuracy_score", "multiclass_f1_score",
     "binary_f1_score", "binary_auroc", "multiclass_auroc")
)  # fmt: skip
"""Functions that a mean over parts does not give."""


@every_distributed_program("all_reduce", "reduce", "reduce_tensor", "reduce_value", "reduce_mean", "all_reduce_mean")
def ratios_averaged(flow: Flow) -> Iterator[Hit]:
    """F1, precision or recall of each rank's part, averaged over the ranks: not that of the whole."""
    for op in flow.calls("all_reduce", "reduce"):
        given = op.args[0] if op.args else None
        if given is None or given.has("graph", "grad") or not given.has("output"):
            continue
        for one in _told(given):
            ratio = _is_ratio(one) and own_part(one)
            library = one.made is not None and one.made.last in _OF_ALL and any(map(own_part, one.made.args))
            if (ratio or library) and not _of_a_batch(op, one) and not reduced(flow, one, op.index):
                yield hit(op, what="a ratio of counts" if ratio or one.made is None else one.made.last)
                return


def _of_a_batch(op: Op, value: Value) -> bool:
    """Of the step's batch, as it is shown while training goes on; or of each batch by itself."""
    said = [one.made for one in inner(value) if one.made is not None and one.made.last == "forward"]
    return any(not one.no_grad or (one.loops and op.within(one.loops[-1])) for one in said)


def _told(value: Value) -> list[Value]:
    """Through `torch.tensor([a, b])` and the like: what is in it."""
    made = value.made
    if made is not None and made.last in (
        "tensor",
        "as_tensor",
        "stack",
        "FloatTensor",
        "clone",
        "to",
        "float",
        "detach",
    ):
        given = [made.of] if made.name.startswith(".") and made.of is not None else list(made.args[:1])
        return [part for one in given for item in (one.items or [one]) for part in _told(item)]
    return [value]


def _is_ratio(value: Value) -> bool:
    """A quotient of sums, where the sum below depends on what the model says."""
    if value.attrs.get("op", Value()).name != "Div":
        return False
    above, below = value.attrs["left"], value.attrs["right"]
    return above.has("output") and _by_content(below) and any(map(_is_sum, inner(below)))


def _is_sum(value: Value) -> bool:
    made = value.made
    return made is not None and ((made.kind == "augassign" and made.name == "Add") or made.last in ("sum", "bincount"))


def _by_content(value: Value, depth: int = 0) -> bool:
    """On predictions, and not only on how many there are."""
    if not value.has("output") or depth > 12:
        return False
    made = value.made
    if "left" in value.attrs:
        return any(_by_content(value.attrs[side], depth + 1) for side in ("left", "right"))
    if "sliced" in value.attrs:
        return _by_content(value.attrs["sliced"], depth + 1)
    if made is None or made.last in _SIZES:
        return False
    if made.kind == "augassign":
        return any(_by_content(one, depth + 1) for one in (*made.args, *([made.of] if made.of is not None else [])))
    return True


@every_distributed_program("load_state_dict")
def best_of_each_rank(flow: Flow) -> Iterator[Hit]:
    """Each rank keeps the weights that were best on its own part, and takes them back: they are of unlike epochs."""
    if flow.mentions(r"torchmetrics|\bMetric\b|evaluate\.load"):
        return
    for op in flow.calls("load_state_dict"):
        state = op.args[0] if op.args else None
        kept = state.made if state is not None and state.kind == "state" else None
        if kept is None or op.label or kept.label in ("first", "others"):
            continue
        if any(one.last in ("broadcast", "broadcast_object_list") and one.index > kept.index for one in flow.ops):
            continue
        for guard in kept.guards:
            if guard.value.has("output") and own_part(guard.value) and not reduced(flow, guard.value, kept.index):
                yield hit(op, kept)
                return


_LOW = ("bfloat16", "float16", "half")
_LIKE = ("new_zeros", "new_tensor", "new_full", "zeros_like", "full_like", "new_ones")
_PLAIN = ("zeros", "tensor", "full", "scalar_tensor", "as_tensor")
_KEEP_TYPE = frozenset(("squeeze", "view", "reshape", "flatten", "contiguous", "detach", "to_local", "sum", "clone"))


@every_distributed_program("new_zeros", "zeros", "zeros_like", "tensor", "new_tensor", "full", "scalar_tensor")
def counted_in_low_precision(flow: Flow) -> Iterator[Hit]:
    """A total that is held in half precision: from 256 (or 2048) on, adding one changes nothing."""
    for op in flow.of_kind("augassign"):
        total, added = op.of, op.args[0]
        made = total.made if total is not None else None
        if op.name != "Add" or made is None or not op.loops or added.has("graph", "grad"):
            continue
        while made is not None and made.kind == "augassign":
            made = made.of.made if made.of is not None and made.of.made is not made else None
        if made is None or not (_asks_for_low(made) or _takes_over_low(flow, made)):
            continue
        outside = not made.within(op.loops[-1]) or any("None" in text_of(guard.node) for guard in made.guards)
        if outside and (op.no_grad or _is_count(added)):
            yield hit(made, op, name=op.target)
            return


def _is_count(value: Value) -> bool:
    return (
        value.kind == "number"
        or _is_sum(value)
        or (value.made is not None and value.made.last in _SIZES)
        or value.has("len")
    )


def _asks_for_low(made: Op) -> bool:
    kind = made.keywords.get("dtype")
    return kind is not None and made.last in (*_PLAIN, *_LIKE) and kind.name.rsplit(".", 1)[-1] in _LOW


def _takes_over_low(flow: Flow, made: Op) -> bool:
    """`logits.new_zeros(())` of outputs in half precision."""
    kind = made.keywords.get("dtype")
    if made.last in _LIKE and kind is None:
        like = made.of if made.name.startswith(".") else next(iter(made.args), None)
    elif made.last in (*_PLAIN, *_LIKE) and kind is not None and "of" in kind.attrs:
        like = kind.attrs["of"]
    else:
        return False
    for _ in range(6):
        if like is None or like.made is None:
            return False
        if like.made.last == "forward":
            return _says_low(like.made) or _cast_low(flow, like.made)
        if like.made.last not in _KEEP_TYPE:
            return False
        like = like.made.of
    return False


def _says_low(forward: Op) -> bool:
    contexts = [one for one in forward.contexts if one.name == "autocast" and one.sure]
    given = [
        value
        for one in contexts
        if one.value.made
        for value in (*one.value.made.args, *one.value.made.keywords.values())
    ]
    return any(value.name.rsplit(".", 1)[-1] in _LOW for value in given)


def _cast_low(flow: Flow, forward: Op) -> bool:
    """The model itself is in half precision."""
    if forward.of is None:
        return False
    for op in flow.calls("bfloat16", "half", "to"):
        same = (
            op.of is not None and op.of.kind == "model" and op.of.base is forward.of.base and op.index < forward.index
        )
        low = op.last != "to" or any(one.name.rsplit(".", 1)[-1] in _LOW for one in (*op.args, *op.keywords.values()))
        if same and low:
            return True
    return False


# -- against whose candidates --------------------------------------------------------------------------------------

_CHOICE = re.compile(r"\b(?:argmax|topk|argsort|sort|max)\(")
_ALL_PAIRS = re.compile(r" @ |\b(?:matmul|mm|cdist|einsum)\(")
_OWN_PART = re.compile(r"\[\s*rank\b|\brank\s*\*|\brank\s*::|\brank,")
_DEALT_OUT = re.compile(r"DistributedSampler\(\s*\w*(?:test|val|eval|query|queries|gallery|hold|dev)")


@every_file("all_reduce")
def candidates_of_one_rank(flow: Flow, module: Module) -> Iterator[Hit]:
    """Whose partner is nearest is asked among the rank's own part of all partners, and the hits are added up."""
    dealt = flow.mentions(_DEALT_OUT.pattern)
    for function in module.statements:
        if not isinstance(function, Function):
            continue
        text = text_of(function)
        if not _ALL_PAIRS.search(text) or not re.search(r"no_grad|inference_mode|\.eval\(\)", text):
            continue
        if re.search(r"gather|\.backward\(", text) or not (dealt or _OWN_PART.search(text)):
            continue
        for node in _outside_loops(function):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq) and _finds_place(function, node):
                yield at(module, node)
                break


def _outside_loops(function: Function) -> Iterator[ast.AST]:
    """Batch by batch it may be meant so."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, ast.For | ast.While):
            waiting.extend(ast.iter_child_nodes(node))


def _finds_place(function: Function, node: ast.Compare) -> bool:
    """What is chosen is held against the numbers from 0 on."""
    set_to: dict[str, str] = {}
    for one in ast.walk(function):
        if isinstance(one, ast.Assign) and len(one.targets) == 1 and isinstance(one.targets[0], ast.Name):
            set_to[one.targets[0].id] = text_of(one.value)
    sides = [node.left, node.comparators[0]]
    said = [
        text_of(side) + "".join(set_to.get(part.id, "") for part in ast.walk(side) if isinstance(part, ast.Name))
        for side in sides
    ]
    places = [
        re.search(r"\barange\([^,()]*(?:\([^()]*\))?[^,()]*(?:, device=[^()]*)?\)", one) is not None for one in said
    ]
    offset = [re.search(r"rank|offset", one) is not None for one in said]
    chosen = [bool(_CHOICE.search(one)) for one in said]
    return any(places[n] and not offset[n] and chosen[1 - n] for n in (0, 1))
