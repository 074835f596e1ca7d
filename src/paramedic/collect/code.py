"""Python programs → events: the calls that matter to distributed training, and under which condition each is made.

The syntax tree alone is read; nothing is imported or executed.
"""

from __future__ import annotations

import ast
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from paramedic.collect.formats import Broken, Entry, Section
from paramedic.model import Event
from paramedic.redact import clipped, redact
from paramedic.syntax import MOST_BITS, parsed

RELEVANT = re.compile(
    r"\b(?:torch|deepspeed|accelerate|lightning|pytorch_lightning|colossalai|horovod|world_size|TrainingArguments|tensorflow|megatron)\b"
)


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


WATCHED = frozenset(
    words(
        """init_process_group DistributedDataParallel FullyShardedDataParallel fully_shard DistributedSampler DataLoader
    save load barrier all_reduce all_gather all_gather_object all_to_all all_gather_into_tensor broadcast
    broadcast_object_list reduce reduce_scatter gather gather_object scatter reduce_scatter_tensor
    all_to_all_single monitored_barrier scatter_object_list cuda to set_device backward step manual_seed
    random_split clip_grad_norm_ initialize convert_sync_batchnorm state_dict log makedirs mkdir add_argument
    set_start_method checkpoint device Adam AdamW SGD GradScaler Accelerator MNIST CIFAR10 CIFAR100 FashionMNIST
    STL10 SVHN seed_everything set_seed"""
    )
)
_NAMED = frozenset(
    words(
        """set_epoch no_sync destroy_process_group DistributedSampler set_device unscale_ all_reduce reduce all_gather
    gather all_gather_object reduce_dict gather_for_metrics prepare prepare_data_loader local_rank LOCAL_RANK
    device_count IterableDataset WebLoader WebDataset DistributedBatchSampler BatchSampler StatefulDataLoader
    set_default_device set_default_tensor_type CUDA_VISIBLE_DEVICES Join join init_process_group
    DistributedDataParallel FullyShardedDataParallel fully_shard init_distributed Accelerator Fabric
    launch_from_torch initialize init_device_mesh set_static_graph static_graph use_orig_params
    DistributedSamplerWrapper split_dataset_by_node get_world_size WORLD_SIZE RANK MASTER_ADDR setdefault
    sync_dist mpu parallel_state init Trainer peft LoraConfig get_peft_model add_adapter requires_grad requires_grad_
    bitsandbytes BitsAndBytesConfig load_in_4bit load_in_8bit quantization_config"""
    )
)
_RANK = re.compile(
    r"(?i)(?:^|[._])rank(?:_id)?$|is_(?:main|master|chief|primary|first|leader|root|rank)|(?:^|\.)(?:chief|coordinator)$"
    r"|is_(?:global|local|world)_(?:process_)?zero|is_local_main_process|process_index$|(?:main|master)_process$|should_save|get_rank$|is_world_process_zero|is_global_zero"
)
_RANK_TAKEN = re.compile(
    r"""^[ \t]*(\w{1,80})(?: *, *\w{1,80})* *= *(?:(?:\w{1,80}\.){0,4}(?:get_rank|rank)\(\)|int\( *(?:os\.)?"""
    r"""(?:environ(?:\.get)?[\[(]|getenv\() *["']RANK["'])""",
    re.M,
)
"""`r, w = dist.get_rank(), dist.get_world_size()`, `r = int(os.environ["RANK"])`."""
_VARIABLE_TAKEN = re.compile(
    r"""^[ \t]*(\w{1,80}) *= *(?:os\.)?(?:environ(?:\.get)?[\[(]|getenv\() *["'](?!\w*(?:RANK|WORLD|PROC|NODE))\w""",
    re.M,
)
"""`FAULT = os.environ.get("FAULT", "")`: a launcher does not set it."""
_PLUGINS = {
    "GeminiPlugin": "colossalai", "HybridParallelPlugin": "colossalai", "LowLevelZeroPlugin": "colossalai",
    "TorchDDPPlugin": "colossalai", "TorchFSDPPlugin": "colossalai", "MoeHybridParallelPlugin": "colossalai",
    "TrainingArguments": "transformers", "Seq2SeqTrainingArguments": "transformers", "SFTConfig": "transformers",
    "DPOConfig": "transformers", "GRPOConfig": "transformers", "Trainer": "lightning",
}  # fmt: skip
_DEEPSPEED = frozenset(("zero_optimization", "train_micro_batch_size_per_gpu"))
_NAME = re.compile(r"\w+")
_LINE = re.compile(r"[^\r\n]*+(?:\r\n?|\n)|[^\r\n]++")
"""With its end; Python, too, takes a carriage return alone for one."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_NAME_OR_CALL = re.compile(r"[A-Za-z_]\w*(?: *\()?")
_MARKS = frozenset(
    (
        *(name + call for name in (*WATCHED, *_PLUGINS, "DDP", "FSDP") for call in ("(", " (")),
        *(name + call for name in ("rank", "isnan", "isinf", "isfinite") for call in ("", "(", " (")),
        *("device", "environ", "train_batch_size", *_DEEPSPEED),
    )
)
"""Names and calls: a statement with none of them tells nothing."""
_PROGRAM = frozenset(
    name + call
    for name in words(
        """backward DataLoader init_process_group DistributedDataParallel FullyShardedDataParallel fully_shard
    optim DistributedSampler Accelerator apply_gradients GradientTape LightningModule Dataset
    IterableDataset Module Sequential prepare_model prepare_data_loader initialize get_rank no_grad
    inference_mode fit Trainer DistributedOptimizer all_reduce parallelize_module PipelineStage execute_pipeline
    get_forward_backward_func TorchTrainer MirroredStrategy MultiWorkerMirroredStrategy ClusterCoordinator"""
    )
    for call in ("", "(", " (")
)
"""A file with one of them may take part in a training program."""
_LONGEST = 300_000
_KEPT = (ast.Import, ast.ImportFrom, ast.Break, ast.Continue, ast.If)
_LEAVES = (ast.Name, ast.Constant, ast.expr_context, ast.operator, ast.cmpop)
_DEEPEST = 200
_TEXT = 200
_MOST_PARSED = 400_000
"""Characters: a syntax tree takes up to half a kilobyte for each. No program that trains is as long; tables are."""
_MOST_WRITTEN = 400
"""Characters of an expression that is written anew: of a longer one the beginning is shown as it stands, or each call
around a large table would write the table once more."""
_MOST_EVENTS = 4_000
"""Of one file: many times what the longest training programs have."""
_SHORTEST_SECRET = 8
"""Characters, with the name before it."""


@dataclass(frozen=True, slots=True)
class _Where:
    """The surroundings of a statement."""

    function: str = ""
    bases: tuple[str, ...] = ()
    loops: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    asks: str = ""
    """What decides from outside whether it is done: `if FAULT == "hang"`."""


@dataclass(slots=True)
class _Script:
    name: str
    text: str
    lines: list[str]
    starts: list[int]
    aliases: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    marked: list[int] = field(default_factory=list)
    """Lines with a word that matters; a statement without one is passed over."""
    ranks: frozenset[str] = frozenset()
    """Names that hold the rank without saying so."""
    variables: frozenset[str] = frozenset()
    """Names of what the environment says."""
    taken: set[int] = field(default_factory=set)
    """Nodes whose text was read with the statement they belong to."""
    shown: dict[int, str] = field(default_factory=dict)
    """Lines as events quote them."""
    wide: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    """Of lines that are not ASCII, where characters of several bytes end, in bytes and in characters."""


_SMALL = 12_000
_BESIDE = re.compile(
    r"\b(?:world_size|WORLD_SIZE|learning_rate|batch_size|state_dict|LOCAL_RANK|torch\.(?:load|save|distributed))\b"
)
"""Helpers and settings that a training program imports."""


@dataclass(frozen=True, slots=True)
class Read:
    events: list[Event]
    sections: list[Section]
    cut: str = ""
    """What was left out of it."""


def read(name: str, text: str) -> Read:
    """Raises Broken where it is no Python 3."""
    if len(text) > _MOST_PARSED:
        return Read([], [], f"has more than {_MOST_PARSED:,} characters: it was not read")
    lines = [*_LINE.findall(text), ""]
    ranks, variables = (frozenset(taken.findall(text)) for taken in (_RANK_TAKEN, _VARIABLE_TAKEN))
    script = _Script(name, text, lines, _starts(lines), ranks=ranks, variables=variables)
    trains = False
    for number, line in enumerate(lines, 1):
        names = _NAME_OR_CALL.findall(line)
        if not _MARKS.isdisjoint(names):
            script.marked.append(number)
        trains = trains or not _PROGRAM.isdisjoint(names)
    trains = trains or (len(text) < _SMALL and _BESIDE.search(text) is not None)
    program = [_program(name, text)] if trains and len(text) < _LONGEST else []
    if not script.marked:
        return Read(program, [])
    try:
        _statements(script, parsed(text, keep=bool(program)).body, _Where(), 0)
    except SyntaxError as error:
        raise Broken(f"no Python {_version()}: {error.msg}", error.lineno or 1) from None
    except (RecursionError, MemoryError):
        raise Broken("nested too deeply", 1) from None
    except ValueError as error:
        raise Broken(f"cannot be parsed: {error}", 1) from None
    named = sorted(_NAMED.intersection(_NAME.findall(text)))
    script.events.append(Event(name, len(script.events), "script", name, None, fields={"names": named}))
    cut = f"has more than {_MOST_EVENTS:,} calls: the rest was not looked at" if _is_full(script) else ""
    return Read(script.events + program, script.sections, cut)


def _program(name: str, text: str) -> Event:
    """The whole text, for rules that follow values through a program."""
    return Event(name, 0, "program", name, None, fields={"text": redact(text)})


def _version() -> str:
    import sys

    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _starts(lines: Sequence[str]) -> list[int]:
    return list(accumulate(map(len, lines), initial=0))


def _imported(script: _Script, node: ast.Import | ast.ImportFrom) -> None:
    module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
    for alias in node.names:
        if module or alias.asname:
            script.aliases[alias.asname or alias.name] = module + alias.name


def _is_marked(script: _Script, node: ast.AST) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    at = bisect_left(script.marked, first)
    return at < len(script.marked) and script.marked[at] <= last


# -- statements ----------------------------------------------------------------------------------------------------


def _statements(script: _Script, body: Sequence[ast.stmt], where: _Where, depth: int) -> None:
    if depth > _DEEPEST:
        raise RecursionError
    for statement in body:
        if _is_full(script):
            return
        where = _statement(script, statement, where, depth)


def _statement(script: _Script, node: ast.stmt, where: _Where, depth: int) -> _Where:
    """What holds for the statements after it: `if rank != 0: return` guards them."""
    if not _is_marked(script, node) and not isinstance(node, _KEPT):
        return where
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            zero = any(
                "rank_zero" in _text(d, script) or "main_process" in _text(d, script) for d in node.decorator_list
            )
            guards = ("first",) if zero else ()
            inside = replace(where, function=node.name, loops=(), guards=guards, context=())
            _statements(script, node.body, inside, depth + 1)
        case ast.ClassDef():
            bases = tuple(_dotted(base, script) for base in node.bases)
            _statements(script, node.body, replace(where, function="", bases=bases, guards=()), depth + 1)
        case ast.If():
            return _branch(script, node, where, depth)
        case ast.For() | ast.AsyncFor():
            _expressions(script, [node.iter], where, "")
            target = _clean(f"{_text(node.target, script)} in {_text(node.iter, script)}")
            inside = replace(where, loops=(*where.loops, target))
            _statements(script, node.body, inside, depth + 1)
            _statements(script, node.orelse, where, depth + 1)
        case ast.While():
            _expressions(script, [node.test], where, "")
            _statements(script, node.body, replace(where, loops=(*where.loops, "while")), depth + 1)
        case ast.With() | ast.AsyncWith():
            _expressions(script, [item.context_expr for item in node.items], where, "")
            entered = tuple(_clean(_text(item.context_expr, script)) for item in node.items)
            _statements(script, node.body, replace(where, context=(*where.context, *entered)), depth + 1)
        case ast.Try():
            for part in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
                _statements(script, part, where, depth + 1)
        case ast.Import() | ast.ImportFrom():
            _imported(script, node)
        case ast.Break() | ast.Continue():
            if where.loops:
                _event(script, "jump", node, where, {"word": type(node).__name__.lower()})
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            _assigned(script, node, targets, where)
        case _:
            _expressions(script, [node], where, "")
    return where


def _branch(script: _Script, node: ast.If, where: _Where, depth: int) -> _Where:
    _expressions(script, [node.test], where, "")
    guard = _guard(node.test, script)
    opposite = {"first": "others", "others": "first"}.get(guard, guard)
    condition = _clean(f"if {_text(node.test, script)}")
    inside = replace(where, asks="environment") if _asks(node.test, script.variables) else where
    _statements(script, node.body, _under(inside, guard, condition), depth + 1)
    _statements(script, node.orelse, _under(where, opposite, "else"), depth + 1)
    if guard and not node.orelse and node.body and _leaves(node.body[-1], script):
        return _under(where, opposite, "")
    return where


def _under(where: _Where, guard: str, condition: str) -> _Where:
    guards = (*where.guards, guard) if guard else where.guards
    return replace(where, guards=guards, context=(*where.context, condition) if condition else where.context)


def _asks(test: ast.expr, variables: Set[str]) -> bool:
    compared = (
        part.left for part in ast.walk(test) if isinstance(part, ast.Compare) and isinstance(part.ops[0], ast.Eq)
    )
    return bool(variables) and any(isinstance(left, ast.Name) and left.id in variables for left in compared)


def _leaves(node: ast.stmt, script: _Script) -> bool:
    return isinstance(node, ast.Return | ast.Continue | ast.Raise) or (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and _text(node.value.func, script) in ("exit", "sys.exit")
    )


def _guard(test: ast.expr, script: _Script) -> str:
    """Which ranks go on: the "first", the "others", or "some"; empty where the condition does not speak of ranks."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _guard(operand, script)
            return {"first": "others", "others": "first"}.get(inner, inner)
        case ast.BoolOp(op=op, values=values):
            labels = {label for value in values if (label := _guard(value, script))}
            return "" if not labels else labels.pop() if len(labels) == 1 and isinstance(op, ast.And) else "some"
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if _is_rank(left, script):
            return _compared(operator, right, script)
        case ast.Compare():
            return "some" if any(_is_rank(part, script) for part in ast.walk(test)) else ""
    if isinstance(test, ast.Name | ast.Attribute | ast.Call) and _is_rank(test, script):
        name = _text(test.func if isinstance(test, ast.Call) else test, script).rsplit(".", 1)[-1].lower()
        plain = re.fullmatch(r"\w*rank(?:_id)?", name) or name in script.ranks
        return "others" if plain and not name.startswith("is_") else "first"
    return "some" if any(_is_rank(part, script) for part in ast.walk(test)) else ""


def _is_rank(node: ast.AST, script: _Script) -> bool:
    if isinstance(node, ast.Call):
        return _is_rank(node.func, script)
    if isinstance(node, ast.Name | ast.Attribute):
        name = _text(node, script)
        return name in script.ranks or bool(_RANK.search(name))
    return False


def _compared(operator: ast.cmpop, right: ast.expr, script: _Script) -> str:
    value = right.value if isinstance(right, ast.Constant) else None
    first = {ast.Eq: 0, ast.LtE: 0, ast.Lt: 1}
    others = {ast.NotEq: 0, ast.Gt: 0, ast.GtE: 1}
    if value is not None and not isinstance(value, bool):
        if first.get(type(operator)) == value:
            return "first"
        if others.get(type(operator)) == value:
            return "others"
    if isinstance(operator, ast.In) and isinstance(right, ast.Tuple | ast.List | ast.Set):
        return "first" if {_text(item, script) for item in right.elts} == {"-1", "0"} else "some"
    return "some"


def _assigned(script: _Script, node: ast.stmt, targets: Sequence[ast.expr], where: _Where) -> None:
    value = getattr(node, "value", None)
    to = ", ".join(_text(target, script) for target in targets)
    for target in targets:
        if isinstance(target, ast.Subscript) and _dotted(target.value, script) == "os.environ":
            name = _text(target.slice, script).strip("'\"")
            _event(script, "variable", node, where, {"name": name, "value": _clean(_literal(value, script), name)})
    if value is not None:
        if isinstance(value, ast.Dict):
            _deepspeed(script, value)
        _expressions(script, [value], where, to)
        if isinstance(value, ast.Call | ast.Subscript | ast.Name | ast.Attribute) and re.search(r"rank|device", to):
            _event(script, "assigned", node, where, {"to": to, "text": _text(value, script)})


# -- expressions ---------------------------------------------------------------------------------------------------


def _expressions(script: _Script, nodes: Sequence[ast.AST], where: _Where, to: str) -> None:
    """Every watched call in them, the outermost first."""
    waiting: list[tuple[ast.AST, str, str]] = [(node, to, "") for node in reversed(nodes)]
    while waiting and not _is_full(script):
        node, target, inside = waiting.pop()
        if isinstance(node, ast.Call):
            name = _dotted(node.func, script)
            last = name.rsplit(".", 1)[-1]
            if last in WATCHED:
                _call(script, node, where, name, target, inside)
            if last in _PLUGINS:
                _settings(script, node, name, _PLUGINS[last])
            inside = last
        elif isinstance(node, ast.Dict):
            _deepspeed(script, node)
        elif isinstance(node, _LEAVES):
            continue
        children = [
            (child, "" if isinstance(node, ast.Call) else target, inside) for child in ast.iter_child_nodes(node)
        ]
        waiting += reversed(children)


def _call(script: _Script, node: ast.Call, where: _Where, name: str, to: str, inside: str) -> None:
    receiver = _text(node.func.value, script) if isinstance(node.func, ast.Attribute) else ""
    fields = {
        "name": name,
        "of": receiver,
        "arguments": [_literal(argument, script) for argument in node.args[:8]],
        "keywords": {keyword.arg or "**": _literal(keyword.value, script) for keyword in node.keywords},
        "to": to,
        "inside": inside,
    }
    _event(script, "call", node, where, fields)


def _event(script: _Script, kind: str, node: ast.AST, where: _Where, fields: dict[str, Any]) -> None:
    line = getattr(node, "lineno", 1)
    if line not in script.shown:
        script.shown[line] = clipped(script.lines[line - 1].strip(), _TEXT)
    surroundings = {
        "function": where.function,
        "bases": list(where.bases),
        "loops": list(where.loops),
        "guards": list(where.guards),
        "context": list(where.context),
        "asks": where.asks,
    }
    clean = {key: _clean(value) for key, value in fields.items()}
    script.events.append(
        Event(script.name, len(script.events), kind, script.shown[line], line, fields=clean | surroundings)
    )


def _is_full(script: _Script) -> bool:
    return len(script.events) >= _MOST_EVENTS


def _clean(value: Any, name: str = "") -> Any:
    """Without secrets, which may be known by the name before them alone."""
    if isinstance(value, str):
        front = f"{name}=" if name else ""
        if len(front) + len(value) < _SHORTEST_SECRET:
            return value
        shown = redact(front + value)
        clean = shown[len(front) :] if shown.startswith(front) else redact(value)
        return clean if len(clean) <= _TEXT else clipped(clean, _TEXT)
    if isinstance(value, list):
        return [_clean(one) for one in value]
    return {_clean(key): _clean(one, key) for key, one in value.items()} if isinstance(value, dict) else value


def _literal(node: ast.AST | None, script: _Script) -> Any:
    """A constant as it is; anything else as its text behind a `=`, so that it cannot be taken for one."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, int | float) else f"={_text(node, script)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Pow):
        left, right = _literal(node.left, script), _literal(node.right, script)
        if isinstance(left, int) and isinstance(right, int) and not isinstance(left, bool) and abs(right) < 64:
            number = left * right if isinstance(node.op, ast.Mult) else left ** abs(right) if abs(left) < 1000 else None
            if number is not None and number.bit_length() <= MOST_BITS:
                return number
    return None if node is None else f"={_text(node, script)}"


def _dotted(node: ast.AST, script: _Script) -> str:
    """`dist.barrier` as `torch.distributed.barrier`, by the imports."""
    if isinstance(node, ast.Name):
        return script.aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, script)}.{node.attr}"
    return ""


def _text(node: ast.AST, script: _Script) -> str:
    if isinstance(node, ast.Name):
        return node.id
    start, end = _span(script, node)
    if end - start > _MOST_WRITTEN:
        begins = " ".join(script.text[start : start + _MOST_WRITTEN].split())
        return f"{begins}.{node.attr}" if isinstance(node, ast.Attribute) else begins
    if isinstance(node, ast.Attribute):
        return f"{_text(node.value, script)}.{node.attr}"
    return repr(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)


def _span(script: _Script, node: ast.AST) -> tuple[int, int]:
    """Where it stands in the text."""
    line: int = getattr(node, "lineno", 1)
    last: int = getattr(node, "end_lineno", None) or line
    start = script.starts[line - 1] + _column(script, line, getattr(node, "col_offset", 0))
    return start, script.starts[last - 1] + _column(script, last, getattr(node, "end_col_offset", None) or 0)


# -- settings in code ----------------------------------------------------------------------------------------------


def _settings(script: _Script, node: ast.Call, name: str, kind: str) -> None:
    """`TrainingArguments(fp16=True)` is a configuration like any file."""
    last = name.rsplit(".", 1)[-1]
    if last == "Trainer" and not name.startswith(("lightning", "pytorch_lightning", "pl.", "L.")):
        return
    entries = [Entry("class", last, node.lineno)]
    for keyword in node.keywords:
        key, value = keyword.arg or "?", keyword.value
        entries.append(_place(script, key, value, getattr(keyword, "lineno", node.lineno)))
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        entries.append(Entry("?", None, node.lineno))
    script.sections.append(Section(kind, tuple(entries), len(script.sections)))


def _place(script: _Script, key: str, value: ast.expr, line: int) -> Entry:
    literal = _literal(value, script)
    start, end = _span(script, value)
    known = None if isinstance(literal, str) and literal.startswith("=") else literal
    return Entry(key, known, line, start, end, (start, end))


def _column(script: _Script, line: int, offset: int) -> int:
    """ast counts bytes of UTF-8."""
    if line not in script.wide:
        script.wide[line] = _wide(script.lines[line - 1])
    in_bytes, in_characters = script.wide[line]
    at = bisect_right(in_bytes, offset) - 1
    return offset if at < 0 else offset - in_bytes[at] + in_characters[at]


def _wide(line: str) -> tuple[list[int], list[int]]:
    """Just behind each character of several bytes: how many bytes of UTF-8 and how many characters stand before."""
    ends = [found.end() for found in _NOT_ASCII.finditer(line)]
    widths = [len(found[0].encode("utf-8", "surrogatepass")) - 1 for found in _NOT_ASCII.finditer(line)]
    return [end + more for end, more in zip(ends, accumulate(widths), strict=True)], ends


def _deepspeed(script: _Script, node: ast.Dict) -> None:
    if id(node) in script.taken:
        return
    keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
    if not keys & _DEEPSPEED and not ("train_batch_size" in keys and keys & {"optimizer", "fp16", "bf16"}):
        return
    entries = tuple(_flat(script, node, "", 0))
    script.sections.append(Section("deepspeed", entries, len(script.sections)))


def _flat(script: _Script, node: ast.Dict, path: str, depth: int) -> Iterator[Entry]:
    script.taken.add(id(node))
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            yield Entry(f"{path}.?" if path else "?", None, value.lineno)
            continue
        name = f"{path}.{key.value}" if path else key.value
        if isinstance(value, ast.Dict) and depth < 8:
            place = _place(script, name, value, key.lineno)
            yield replace(place, value={})
            yield from _flat(script, value, name, depth + 1)
        else:
            yield _place(script, name, value, key.lineno)
