"""Programs in which each rank takes what it alone knows for what all have: names, statistics, scores."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    at,
    averages,
    first_backward,
    function_around,
    gradient_reductions,
    hit,
    model_parallel,
    reduces_by_hand,
)
from paramedic.detect.origins import inner, own_part, reduced, trains
from paramedic.detect.program import Function, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value


def _alone(op: Op) -> bool:
    """By the first rank only, or by all but it."""
    return op.label in ("first", "others")


# -- hash() ------------------------------------------------------------------------------------------------------------

_TEXTS = frozenset(
    ("str", "repr", "format", "join", "lower", "upper", "strip", "rstrip", "lstrip", "split", "replace", "encode",
     "decode", "basename", "read", "readline", "rsplit", "removeprefix", "removesuffix")
)  # fmt: skip
_TEXT_NAME = re.compile(r"(?i)^(?:\w+_)?(?:word|token|tok|text|name|path|fname|filename|url|string|title|line)$")
_SEED = 2**31
_SAME_SALT = r"PYTHONHASHSEED|start_processes|['\"]fork['\"]|\bProcess\("


@every_distributed_program("hash")
def salted_hash(flow: Flow) -> Iterator[Hit]:
    """`hash()` of text is another number in every process: what it numbers or deals out is another on every rank."""
    if flow.mentions(_SAME_SALT):
        return
    for op in flow.calls("hash"):
        if op.name != "hash" or not op.args or _alone(op) or not isinstance(op.node, ast.Call):
            continue
        around = function_around(op)
        if isinstance(around, Function) and around.name == "__hash__":
            continue
        size = _modulo(around, op.node)
        known = size is not None and isinstance(size, ast.Constant) and isinstance(size.value, int)
        if size is None or (known and isinstance(size, ast.Constant) and int(str(size.value)) >= _SEED):
            continue
        if "**" in text_of(size) or _seeds_with(around, op.node):
            continue
        if _is_text(op.node.args[0], op.args[0], around):
            yield hit(op, what=text_of(op.node)[:60])


def _modulo(around: ast.AST, call: ast.Call) -> ast.expr | None:
    """By what the hash is taken modulo, also by way of a name."""
    names = {
        text_of(node.targets[0])
        for node in ast.walk(around)
        if isinstance(node, ast.Assign) and any(part is call for part in ast.walk(node.value))
    }
    for node in ast.walk(around):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            direct = any(part is call for part in ast.walk(node.left))
            if direct or (isinstance(node.left, ast.Name) and node.left.id in names):
                return node.right
    return None


def _seeds_with(around: ast.AST, call: ast.Call) -> bool:
    return any(
        isinstance(node, ast.Call)
        and re.search(r"seed|Random|default_rng|Generator", text_of(node.func))
        and any(part is call for part in ast.walk(node))
        for node in ast.walk(around)
    )


def _is_text(node: ast.expr, value: Value, around: ast.AST) -> bool:
    """Numbers, and tuples of them, have the same hash everywhere."""
    if isinstance(node, ast.Tuple):
        parts = value.items or [Value()] * len(node.elts)
        return any(_is_text(one, part, around) for one, part in zip(node.elts, parts, strict=False))
    if value.kind == "text" or isinstance(value.const, str | bytes):
        return True
    if isinstance(node, ast.BinOp):
        return any(isinstance(part, ast.JoinedStr) or _is_string(part) for part in ast.walk(node))
    if isinstance(node, ast.Call):
        return text_of(node.func).rsplit(".", 1)[-1] in _TEXTS
    return _comes_as_text(value) or (value.kind not in ("number", "tensor") and _is_called_text(node, around))


def _comes_as_text(value: Value) -> bool:
    return value.made is not None and value.made.last in _TEXTS


def _is_called_text(node: ast.expr, around: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return bool(_TEXT_NAME.search(node.id)) or _annotated(around, node.id) in ("str", "bytes")
    if isinstance(node, ast.Subscript) and _is_string(node.slice):
        return bool(_TEXT_NAME.search(text_of(node.slice)[1:-1]))
    return isinstance(node, ast.Attribute) and bool(_TEXT_NAME.search(node.attr))


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _annotated(around: ast.AST, name: str) -> str:
    if not isinstance(around, Function):
        return ""
    every = (*around.args.posonlyargs, *around.args.args, *around.args.kwonlyargs)
    return next((text_of(one.annotation) for one in every if one.arg == name), "")


# -- what is learned of the data before training -----------------------------------------------------------------------

_ENCODERS = frozenset(
    ("LabelEncoder", "OrdinalEncoder", "OneHotEncoder", "LabelBinarizer", "CountVectorizer", "TfidfVectorizer",
     "DictVectorizer", "KBinsDiscretizer", "MultiLabelBinarizer", "Tokenizer")
)  # fmt: skip
_SCALERS = frozenset(
    ("StandardScaler", "MinMaxScaler", "RobustScaler", "MaxAbsScaler", "QuantileTransformer", "PowerTransformer", "PCA",
     "TruncatedSVD", "KMeans", "MiniBatchKMeans", "Normalizer")
)  # fmt: skip
_FITS = ("fit", "fit_transform", "fit_on_texts", "train_from_iterator", "train_new_from_iterator")
_DISTINCT = frozenset(
    ("set", "Counter", "most_common", "unique", "factorize", "OrderedDict", "fromkeys", "value_counts")
)
_NUMBERS = ("factorize", "get_dummies", "build_vocab_from_iterator")
_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "allgather", "bcast")


def _one_model(flow: Flow) -> bool:
    """The ranks train one model together."""
    return (averages(flow) or reduces_by_hand(flow)) and not model_parallel(flow)


@every_distributed_program()
def numbered_by_each_rank(flow: Flow) -> Iterator[Hit]:
    """Words or classes get their numbers from one rank's part of the data: the same word has another on each rank."""
    begins = first_backward(flow)
    if not _one_model(flow) or any(op.index < begins for op in flow.calls(*_OBJECTS)):
        return
    for op in flow.ops:
        if _alone(op) or op.index > begins or not (given := _numbered(op)):
            continue
        if own_part(given) and not reduced(flow, given, begins):
            yield hit(op)
            return


def _numbered(op: Op) -> Value | None:
    """What gets its numbers here, by the order in which it is met or sorted."""
    first = op.args[0] if op.args else None
    if first is None:
        return None
    if op.kind == "setitem":
        return first if _counts_itself(op) and _is_new(op) else None
    if op.kind != "call":
        return None
    numbers = (
        (op.last == "setdefault" and len(op.args) > 1 and _counts_itself(op))
        or (op.last == "enumerate" and _inverts(op) and any(_distinct(one) for one in inner(first)))
        or op.last in _NUMBERS
        or (op.last == "unique" and op.argument("return_inverse") is not None)
        or (op.last in _FITS and op.of is not None and _made_by(op.of, _ENCODERS))
    )
    return first if numbers else None


def _counts_itself(op: Op) -> bool:
    """`table[word] = len(table)`."""
    given = op.args[1]
    return given.has("len") and given.attrs.get("of") is op.of


def _is_new(op: Op) -> bool:
    return any(isinstance(part, ast.NotIn) for guard in op.guards if guard.node for part in ast.walk(guard.node))


def _distinct(value: Value) -> bool:
    return value.made is not None and value.made.last in _DISTINCT


def _inverts(op: Op) -> bool:
    """`{word: number for number, word in enumerate(words)}`."""
    for loop_node in ast.walk(op.module.tree):
        if isinstance(loop_node, ast.DictComp) and loop_node.generators[0].iter is op.node:
            target = loop_node.generators[0].target
            names = [text_of(one) for one in target.elts] if isinstance(target, ast.Tuple) else []
            return len(names) == 2 and names[1] == text_of(loop_node.key) and names[0] in text_of(loop_node.value)
    return False


def _made_by(value: Value, names: frozenset[str]) -> bool:
    return value.made is not None and value.made.last in names


_STATISTICS = frozenset(("mean", "std", "var", "sum", "std_mean", "var_mean", "amin", "amax", "min", "max", "quantile",
                         "median", "nanmean", "nanstd", "average", "percentile"))  # fmt: skip
_ROW = r"(?:\w+|self\.\w+)(?:\[[^\]]*\])?"
_BY_ROOT = rf"\(\s*{_ROW} - self\.<mean>\)\s*/\s*\(?\s*(?:torch\.sqrt\()?self\.<std>"


@every_distributed_program()
def standardised_by_own_part(flow: Flow) -> Iterator[Hit]:
    """Every rank centres and scales its rows by its own mean: the same value means something else on each."""
    begins = first_backward(flow)
    if not _one_model(flow) or flow.mentions(r"SyncBatchNorm\("):
        return
    for op in flow.ops:
        if _alone(op) or trains(flow, op):
            continue
        if _scales_own(flow, op, begins):
            yield hit(op)
            return
        for given in (*op.args, *op.keywords.values()) if op.kind == "call" else ():
            mean = _centre(given)
            if mean is not None and _of_own_rows(flow, mean, begins):
                yield hit(next((one.made for one in inner(mean) if _is_statistic(one.made)), None) or op)
                return
    yield from _kept_by_data(flow, begins)


def _scales_own(flow: Flow, op: Op, begins: int) -> bool:
    """`StandardScaler().fit(mine)`."""
    if op.kind != "call" or op.last not in _FITS or op.of is None or not op.args or not _made_by(op.of, _SCALERS):
        return False
    return own_part(op.args[0]) and not reduced(flow, op.args[0], begins) and not flow.has(*_OBJECTS)


def _centre(value: Value) -> Value | None:
    """Of `(x - mean) / std` the mean."""
    while value.made is not None and value.made.last in (
        "float",
        "to",
        "clamp",
        "clip",
        "from_numpy",
        "astype",
        "tensor",
    ):
        below = value.made.of if value.made.name.startswith(".") else next(iter(value.made.args), None)
        if below is None or below is value:
            return None
        value = below
    parts = value.attrs
    if parts.get("op", Value()).name != "Div" or parts["left"].attrs.get("op", Value()).name != "Sub":
        return None
    rows, mean = parts["left"].attrs["left"], parts["left"].attrs["right"]
    return mean if rows.has("rank", "shard") and not rows.has("output", "graph") else None


def _is_statistic(op: Op | None) -> bool:
    """Over the rows, or over all there is; over each row it is no matter of the ranks."""
    if op is None or op.kind != "call" or op.last not in _STATISTICS or op.loops or "__getitem__" in op.stack:
        return False
    of = op.of if op.name.startswith(".") else next(iter(op.args), None)
    if of is not None and _is_element(of):
        return False
    number = 0 if op.name.startswith(".") else 1
    dim = op.argument("dim", number) or op.argument("axis")
    if dim is None:
        return True
    first = dim.items[0] if dim.items else dim
    return first.number() == 0


def _is_element(value: Value) -> bool:
    """One row of many."""
    by = value.attrs.get("by")
    return by is not None and by.kind != "slice" and not isinstance(by.const, str) and not by.has("rank")


def _of_own_rows(flow: Flow, mean: Value, begins: int) -> bool:
    if not own_part(mean) or mean.has("output", "graph", "grad"):
        return False
    return any(_is_statistic(one.made) for one in inner(mean)) and not reduced(flow, mean, begins)


def _kept_by_data(flow: Flow, begins: int) -> Iterator[Hit]:
    """A data set that computes its mean when it is made, and takes it off each row that it gives."""
    kept = [op for op in flow.of_kind("setattr") if op.of is not None and op.of.kind in ("dataset", "instance")]
    for op in kept:
        if _alone(op) or trains(flow, op) or not _of_own_rows(flow, op.args[0], begins) or op.of is None:
            continue
        for other in kept:
            if other is op or other.of is not op.of:
                continue
            pattern = _BY_ROOT.replace("<mean>", re.escape(op.name)).replace("<std>", re.escape(other.name))
            if re.search(pattern, text_of(op.of.node)):
                yield hit(op, other)
                return


# -- what one rank alone has -------------------------------------------------------------------------------------------

_SENDS = ("broadcast", "broadcast_object_list", "all_reduce", "scatter", "_sync_module_states", "sync_module_states",
          "_broadcast_coalesced", "broadcast_parameters", "bcast", "recv", "all_gather")  # fmt: skip


@every_distributed_program("load_state_dict")
def loaded_by_one_rank(flow: Flow) -> Iterator[Hit]:
    """Weights that only the first rank reads, of a model that nobody sends to the others and all use."""
    for op in flow.calls("load_state_dict"):
        model = op.of
        if op.label != "first" or model is None or model.kind != "model" or "parent" in model.attrs:
            continue
        base = model.base
        if base.attrs.get("wrapped") is not None or model.wrap or base.wrap or model.has("parameter"):
            continue
        loads = [one for one in flow.calls("load_state_dict") if one.of is not None and one.of.base is base]
        sent = [one for one in flow.calls(*_SENDS) if one.index > op.index and not trains(flow, one)]
        used = [one for one in flow.calls("forward") if one.of is not None and one.of.base is base and not one.label]
        after = [one for one in used if one.index > op.index and trains(flow, one)]
        if after and not sent and all(one.label == "first" for one in loads):
            yield hit(op, after[0])
            return


# -- gradients that are left out ---------------------------------------------------------------------------------------

_ELSE = r"to_dense|coalesce\(|sparse_all_?reduce|_values\(\)|\.values\(\)\s*,|all_gather\("


@every_distributed_program("all_reduce", "allreduce", "allreduce_", "all_reduce_coalesced")
def sparse_left_out(flow: Flow) -> Iterator[Hit]:
    """Averages gradients by hand and passes over sparse ones: each rank goes on with its own tables."""
    if averages(flow) or not flow.mentions(r"sparse\s*=\s*True") or model_parallel(flow):
        return
    for op in gradient_reductions(flow):
        around = function_around(op)
        if re.search(_ELSE, text_of(around) if isinstance(around, Function) else op.module.text):
            continue
        skip = next((node for node in ast.walk(around) if isinstance(node, ast.If) and _passes_sparse(node)), None)
        others = [
            one for one in flow.calls("all_reduce", "allreduce", "all_gather", "broadcast") if one.line != op.line
        ]
        others = [
            one for one in others if any(value.has("grad", "sparse") for value in one.args) and one.index > op.index
        ]
        if skip is not None and not others:
            yield hit(op, name=text_of(skip.test)[:60])
            return


def _passes_sparse(node: ast.If) -> bool:
    test = text_of(node.test)
    if "is_sparse" not in test and "sparse_coo" not in test:
        return False
    negated = bool(re.search(r"not [\w.]*is_sparse|!= torch\.sparse_coo", test))
    if negated:
        return not node.orelse
    return len(node.body) == 1 and isinstance(node.body[0], ast.Continue | ast.Pass)


# -- averages that go on while training --------------------------------------------------------------------------------

_A_MEAN = re.compile(r"(?i)mean|avg|average|\bmu\b|running|moment|decay|beta|alpha|count|delta|lerp|total|\bn\b")
_TOGETHER = re.compile(r"all_reduce|all_?gather|broadcast|\breduce|sync|distributed|allreduce|\bmpi", re.I)


@every_distributed_program()
def running_statistics_apart(flow: Flow) -> Iterator[Hit]:
    """A mean that each rank keeps of what it alone has met, and takes off what the common model gets."""
    if not _one_model(flow):
        return
    for op in flow.ops:
        if op.kind not in ("setattr", "augassign") or not op.target.startswith("self.") or _alone(op):
            continue
        holder = _class_around(op)
        if holder is None or not trains(flow, op) or not own_part(op.args[0]) or op.args[0].has("graph", "grad"):
            continue
        name = op.target.removeprefix("self.")
        update, text = text_of(op.node), text_of(holder)
        goes_on = op.kind == "augassign" or op.target in update.partition("=")[2]
        taken_off = re.search(rf"- self\.{re.escape(name)}\b[^\n]{{0,20}}\)\s*/", text)
        module = any(base.rsplit(".", 1)[-1] == "Module" for base in map(text_of, holder.bases))
        averaged = goes_on and _A_MEAN.search(update)
        if averaged and taken_off and not module and not _TOGETHER.search(text) and not _sent_by_name(flow, name):
            yield hit(op)
            return


def _class_around(op: Op) -> ast.ClassDef | None:
    for node in op.module.classes.values():
        if node.lineno <= op.line <= (node.end_lineno or 0):
            return node
    return None


def _sent_by_name(flow: Flow, name: str) -> bool:
    """`dist.all_reduce(norm.mean)`, or all that an object holds."""
    sent = [text_of(op.node) for op in flow.ops if op.kind == "call" and _TOGETHER.search(op.last)]
    return any(re.search(rf"\.{re.escape(name)}\b|__dict__|vars\(|state_dict|norm", text) for text in sent)


_BUFFERS = re.compile(r"self\.register_buffer\(\s*['\"](\w+)|self\.(\w+) = (?:torch\.)?nn\.(?:Parameter|Embedding)\(")
_NEAREST = re.compile(r"argmin\(|argmax\(|\.min\(|topk\(")
_SLOWLY = re.compile(r"(?i)decay|\bema|_ema|momentum|\.lerp_?\(|gamma")


@every_distributed_program()
def codebook_of_own_rows(flow: Flow) -> Iterator[Hit]:
    """Codes that follow the rows which chose them, each rank's own only: the rest of the batch has no say."""
    if not averages(flow) or model_parallel(flow):
        return
    made = {op.of.node for op in flow.ops if op.kind == "call" and op.of is not None and op.of.kind == "class"}
    for module in flow.nodes:
        for node in module.classes.values():
            text = text_of(node) if node in made else ""
            if not _NEAREST.search(text) or not _SLOWLY.search(text) or _TOGETHER.search(text):
                continue
            names = {one or other for one, other in _BUFFERS.findall(text)}
            place = next((found for name in sorted(names) if (found := _follows(node, name, text))), None)
            if place is not None:
                yield at(module, place, name=text_of(place)[:60])
                return


def _follows(node: ast.ClassDef, name: str, text: str) -> ast.AST | None:
    """Where a table that rows are taken from by their nearest entry is written, behind the class's beginning."""
    table = rf"self\.{re.escape(name)}(?:\.weight)?(?:\.data)?"
    looked_up = (
        rf"{table}\[\w+\]|embedding\([^()\n]*{table}|(?:@|matmul\([^()\n]*,) ?{table}|self\.{re.escape(name)}\(\w+\)"
    )
    if not re.search(looked_up, text):
        return None
    written = re.compile(rf"{table}(?:\.(?:copy_|mul_|lerp_|add_)\(| = )")
    for method in node.body:
        if isinstance(method, Function) and method.name != "__init__" and "init" not in method.name:
            for part in ast.walk(method):
                if isinstance(part, ast.Expr | ast.Assign) and written.match(text_of(part)):
                    return part
    return None


# -- parts of unlike size ----------------------------------------------------------------------------------------------

_FILES = frozenset(("listdir", "glob", "iglob", "iterdir", "rglob", "scandir", "walk"))
_OPENS = frozenset(("open", "load", "loads", "read_csv", "read_parquet", "read_json", "loadtxt", "memmap", "read_text"))
_MIXES = r"shuffle|randperm|permutation|RandomSampler|randint|random\.|multinomial"


@every_distributed_program("all_reduce")
def rest_never_read(flow: Flow) -> Iterator[Hit]:
    """Whole files are dealt out, all stop at the smallest part, and each epoch begins at the front: the rest is never
    seen."""
    if flow.mentions(_MIXES) or not _one_model(flow):
        return
    for op in flow.calls("all_reduce"):
        kind = op.argument("op", 1)
        if kind is None or not kind.name.endswith("MIN") or not op.args or op.index > first_backward(flow):
            continue
        counted = [one.attrs["of"] for one in inner(op.args[0]) if one.has("len") and "of" in one.attrs]
        if any(own_part(one) and _by_files(one) for one in counted):
            yield hit(op)
            return


def _by_files(value: Value) -> bool:
    """Each rank has files of its own, as many rows as they happen to hold."""
    for one in inner(value):
        by, made = one.attrs.get("by"), one.made
        if by is not None and by.has("rank") and "sliced" in one.attrs:
            names = {part.made.last for part in inner(one.attrs["sliced"]) if part.made is not None}
            return bool(names & _FILES) and not names & _OPENS
        if made is not None and made.last in _OPENS and any(map(_of_its_number, made.args)):
            return True
    return False


def _of_its_number(path: Value) -> bool:
    """`f"part-{rank}"`, and not one of a list that was dealt out."""
    return path.has("rank") and not any("by" in part.attrs for part in inner(path))
