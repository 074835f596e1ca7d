"""What calls of libraries return: models, optimizers, loaders, tensors, and what they depend on."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from paramedic.detect.arithmetic import SCALES, combined, flowing, own_draw, union
from paramedic.detect.values import NOTHING, Context, Op, Value, params_root
from paramedic.detect.vocabulary import (
    ASKED,
    MODEL_METHODS,
    RANDOM,
    RANK_CALLS,
    SAME,
    SCHEDULER,
    SEEDS,
    THROUGH,
    WITHOUT_GRAPH,
    WORLD,
    WORLD_CALLS,
    WRAPPERS,
    hint_of,
    is_layer,
    is_optimizer,
    variable,
)

_IN_ONE = frozenset(
    ("parameters_to_vector", "_flatten_dense_tensors", "flatten_dense_tensors", "cat", "concat", "stack", "hstack")
)
"""What makes one tensor of many."""
_BOOSTED = ("model", "optimizer", "criterion", "dataloader", "lr_scheduler")
"""What Colossal-AI's `boost` takes, and gives back in this order."""


def _asks_for_parts(context: Context) -> bool:
    """`with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT)`."""
    made = context.value.made
    return made is not None and any(value.name.endswith("LOCAL_STATE_DICT") for value in made.args)


class Libraries:
    """Knows PyTorch, DeepSpeed, accelerate, Colossal-AI, Ray, Horovod and the standard library by their names."""

    seeds: list[Op]

    def _element(self, over: Value) -> Value:
        if over.kind == "loader":
            return Value("batch", over.tags | {"data"}, attrs={"loader": over})
        if over.kind == "dataset":
            return Value("batch", over.tags | {"data"}, attrs={"loader": over})
        if over.kind == "params":
            return Value("params", over.tags | {"element"}, root=over.root, attrs={"of": over})
        if over.element is not None:
            return over.element
        if over.items:
            first = over.items[0]
            return (
                first
                if len(over.items) == 1
                else Value(first.kind, union(over.items), items=first.items, root=first.root)
            )
        if over.kind == "model":
            return Value("model", over.tags, root=over.root, attrs={"parent": over})
        return Value(tags=over.tags - {"graph"} if over.kind == "range" else over.tags, made=over.made)

    def _forward(self, op: Op, model: Value, every: list[Value]) -> Value:
        op.name = op.last = "forward"
        op.of = model
        tags = (union(every) - SCALES) | {"output"}
        if not op.no_grad:
            tags |= {"graph"}
        return Value("tensor", frozenset(tag for tag in tags if not tag.startswith("part:")), root=model.base)

    # -- functions -------------------------------------------------------------------------------------

    def _library(self, op: Op, args: list[Value], keywords: dict[str, Value], every: list[Value]) -> Value:
        name, last, of = op.name, op.last, op.of
        tags = flowing([*every, *([of] if of is not None and op.name.startswith(".") else [])])
        first = args[0] if args else next(iter(keywords.values()), None)
        if of is not None and of.kind == "mesh" and last in ("get_local_rank", "get_rank", "size"):
            return Value("number", frozenset({"world" if last == "size" else "rank", "mesh"}), made=op)
        if (
            last in RANK_CALLS
            or name.endswith(("hvd.rank", "hvd.local_rank", "torch.rank"))
            or name
            in (
                "horovod.torch.local_rank",
                "horovod.tensorflow.rank",
                "horovod.tensorflow.local_rank",
                "horovod.tensorflow.keras.rank",
                "horovod.keras.rank",
            )
        ):
            return Value("number", frozenset({"rank"}))
        if last in WORLD_CALLS or re.fullmatch(r"(?:horovod\.[\w.]+|hvd)\.size", name):
            return Value("number", frozenset({"world"}))
        if last in ("getenv", "get") and isinstance(first, Value) and isinstance(first.const, str):
            if "environ" in (of.name if of else "") or "environ" in name or last == "getenv":
                return Value(tags=variable(first.const), name=f"environ[{first.const}]")
            if of is not None and first.const in of.attrs:
                return of.attrs[first.const]
            return Value(tags=tags | hint_of(first.const), name=f"[{first.const}]", made=of.made if of else None)
        if last == "getattr" and len(args) > 1 and args[0].kind == "model" and args[1].const in ("module", "_orig_mod"):
            return (
                Value("model", args[0].tags, root=args[0].base, attrs={"outer": args[0]}, made=args[0].made)
                if args[0].wrap and args[1].const == "module"
                else args[0]
            )
        if last in ("int", "abs", "round") and "." not in name and first is not None:
            return Value(
                "number",
                first.tags - {"graph"},
                const=first.const if first.number() is not None else NOTHING,
                label=first.label,
            )
        if last in WRAPPERS or last == "DistributedDataParallelCPU":
            return self._wrapped(op, WRAPPERS.get(last, "ddp"), op.argument("module", 0) or op.argument("model", 0))
        if last == "initialize" and ("deepspeed" in name or "model_parameters" in keywords):
            model = op.argument("model", 1) or Value()
            engine = self._wrapped(op, "deepspeed", model)
            return Value(
                "tuple",
                items=[
                    engine,
                    Value("optimizer", wrap="deepspeed", root=model.base, made=op),
                    Value("loader", frozenset({"shard", "prepared"}), made=op),
                    Value("scheduler", made=op),
                ],
            )
        if last in (
            "prepare",
            "setup",
            "boost",
            "setup_module",
            "setup_dataloaders",
            "setup_optimizers",
            "prepare_model",
            "prepare_data_loader",
            "prepare_dataloader",
        ) and (every or op.name.startswith(".")):
            return self._prepared(op, args, keywords)
        if last == "DistributedOptimizer":
            return Value(
                "optimizer",
                frozenset({"reduced"}),
                wrap="horovod",
                root=first.root if first else None,
                attrs=first.attrs if first else {},
                made=op,
            )
        if is_optimizer(name, last):
            params = op.argument("params", 0) or Value()
            root = params_root(params)
            return Value(
                "optimizer",
                tags & {"world", "/world", "*world"},
                name=last,
                root=root,
                attrs={"params": params},
                made=op,
            )
        if SCHEDULER.search(last) and (any(one.kind == "optimizer" for one in every) or "scheduler" in name):
            return Value(
                "scheduler",
                tags,
                name=last,
                attrs={"optimizer": next((o for o in every if o.kind == "optimizer"), Value())},
                made=op,
            )
        if last in (
            "DistributedSampler",
            "DistributedLengthGroupedSampler",
            "DistributedBatchSampler",
            "DistributedSamplerWrapper",
        ):
            return Value("sampler", tags | {"shard"}, name=last, made=op)
        if last.endswith("Sampler") and last[0].isupper():
            return Value("sampler", tags, name=last, made=op)
        if last in ("DataLoader", "StatefulDataLoader", "DataLoader2", "WebLoader", "MultiEpochsDataLoader"):
            held = {
                key: value
                for key, value in (
                    ("dataset", op.argument("dataset", 0)),
                    ("sampler", op.argument("sampler", 3)),
                    ("batch_sampler", op.argument("batch_sampler", 4)),
                )
                if value is not None
            }
            return Value("loader", union(list(held.values())), attrs=held, made=op)
        if last in (
            "random_split",
            "Subset",
            "TensorDataset",
            "ConcatDataset",
            "ImageFolder",
            "split_dataset_by_node",
            "MNIST",
            "CIFAR10",
            "FashionMNIST",
            "load_dataset",
            "FakeData",
        ):
            extra = frozenset({"shard", "rank"}) if last == "split_dataset_by_node" else frozenset()
            value = Value(
                "dataset", tags | extra, name=last, made=op, attrs={"tensors": Value("tuple", tags, items=list(args))}
            )
            return Value("tuple", value.tags, items=[value, value, value], made=op) if last == "random_split" else value
        if last == "shard" and of is not None:
            return Value(of.kind or "dataset", tags | {"shard"}, made=op)
        if last in ("Accelerator", "Fabric"):
            return Value("accelerator", name=last, made=op)
        if last in {"GradScaler", "ShardedGradScaler"}:
            return Value("scaler", made=op)
        if last == "deepcopy" and first is not None:
            if first.kind == "model":
                return Value(
                    "model",
                    first.tags,
                    name="deepcopy",
                    attrs={"copied": first},
                    node=first.node,
                    module=first.module,
                    bases=first.bases,
                    made=op,
                )
            return first
        if last == "AveragedModel":
            return Value("model", first.tags if first else frozenset(), name="average", made=op)
        if last in ("init_device_mesh", "DeviceMesh"):
            return Value("mesh", tags, made=op)
        if last in ("parallelize_module", "distribute_module") and first is not None:
            first.base.kind = first.kind = "model"
            first.base.tags |= {"tp"}
            first.tags |= {"tp"}
            return first
        if last in ("PipelineStage", "build_stage"):
            return Value("stage", made=op)
        if of is not None and name.startswith("."):
            return self._of_value(op, of, last, args, tags)
        if last in SAME and first is not None and first.kind == "model":
            if last == "convert_sync_batchnorm":
                return Value(
                    "model",
                    first.tags | {"part:SyncBatchNorm"},
                    root=first.root or first,
                    wrap=first.wrap,
                    node=first.node,
                    module=first.module,
                    bases=first.bases,
                )
            return first
        if is_layer(name, last):
            if last.endswith("Loss"):
                return Value("criterion", frozenset(), name=last, made=op)
            idle = last.startswith("Dropout") and (rate := op.argument("p", 0)) is not None and rate.number() == 0
            return Value(
                "model",
                frozenset(tag for tag in tags if tag.startswith("part:")) | ({f"part:{last}"} if not idle else set()),
                name=name,
                made=op,
            )
        if last in ("Sequential", "ModuleList") and name.startswith(("nn.", "torch.")):
            return Value("model", tags, name=name, made=op)
        if "models." in name and (name.startswith(("torchvision", "timm")) or last in ("create_model", "get_model")):
            return Value("model", frozenset({"part:library"}), name=name, made=op)
        if last in (
            "from_pretrained",
            "from_config",
            "create_model",
            "get_peft_model",
            "resnet18",
            "resnet50",
            "resnet34",
        ):
            if re.search(r"(?i)tokeni|config(?!\b)|processor", name):
                return Value(name=name, made=op)
            return Value("model", frozenset({"part:library"}), name=name, made=op)
        if last in SEEDS:
            return self._seeded(op, every)
        if last in RANDOM and (name.startswith(("torch", "np", "numpy", "random", "tf")) or "generator" in keywords):
            drawn = self._drawn(op, keywords)
            if last == "shuffle" and first is not None:
                first.tags |= drawn
            return Value("tensor", drawn, made=op)
        if last in THROUGH and first is not None:
            return (
                first
                if first.kind or first.items is not None or first.element is not None
                else Value(first.kind, tags, made=first.made)
            )
        if last == "enumerate" and first is not None:
            number = Value("number", frozenset({"count"}), name="step")
            if len(args) == 1 and not keywords:
                number.attrs["over"] = first
            return Value(
                "iter", tags, element=Value("tuple", tags, items=[number, self._element(first)]), attrs={"over": first}
            )
        if last == "zip":
            elements = [self._element(one) for one in args]
            return Value(
                "iter",
                tags,
                element=Value("tuple", tags, items=elements),
                attrs={"over": next((one for one in args if one.kind == "loader"), args[0] if args else Value())},
            )
        if last == "range":
            return Value(
                "range",
                tags - {"graph"},
                items=None,
                attrs={
                    "stop": args[-1] if len(args) == 1 else args[1] if len(args) > 1 else Value(),
                    "start": args[0] if len(args) > 1 else Value("number", const=0),
                },
                made=op,
                element=Value(
                    "number",
                    (tags - {"graph"}) | {"count"},
                    attrs={
                        "below": args[-1] if len(args) == 1 else args[1] if len(args) > 1 else Value(),
                        "start": args[0] if len(args) > 1 else Value(),
                        "step": args[2] if len(args) > 2 else Value(),
                    },
                ),
            )
        if last == "next" and first is not None:
            return self._element(first)
        if last == "map" and len(args) > 1:
            return Value("iter", union(args[1:]), element=Value(tags=union(args[1:])))
        if last in ("len",) and first is not None:
            counted = {"len", "len:prepared"} if first.has("prepared") else {"len"}
            return Value("number", (first.tags - {"graph"}) | counted, attrs={"of": first})
        if last in ("new_subgroups", "new_subgroups_by_enumeration"):
            group = Value("group", tags, made=op)
            return Value("tuple", tags, items=[group, Value("list", element=group)], made=op)
        if last == "broadcast_object_list" and first is not None:
            first.tags -= {"rank"}  # what one rank chose all have
            first.items = first.items and [Value(one.kind, one.tags - {"rank"}, made=one.made) for one in first.items]
            return Value(made=op)
        if last == "new_group":
            return Value("group", tags, made=op, attrs={"ranks": first or Value()})
        if last in ("parse_args", "parse_known_args"):
            return Value("args", made=op)
        if last == "Namespace":
            return Value("args", attrs=dict(keywords), made=op)
        if last == "dict" and first is not None and not keywords and first.kind in ("state", "dict", "list"):
            return replace(first, attrs=dict(first.attrs))  # another mapping of the same tensors
        if last == "dict":
            return Value("dict", tags, attrs=dict(keywords), made=op)
        if last == "partial" and first is not None:
            return Value(first.kind, first.tags, first.name, node=first.node, module=first.module, made=op)
        if last == "load" and name in ("torch.load",):
            return Value("dict", (tags & {"rank"}) | {"loaded"}, name="torch.load", made=op)
        kept = tags - {"graph"} if last in WITHOUT_GRAPH or op.no_grad else tags
        root = next((one.root for one in every if "graph" in one.tags and one.root), None)
        kind = next((one.kind for one in every if one.kind == "params"), "")
        if kind and last not in ("filter", "list", "tuple", "chain", "sorted", "dict", "set", "reversed"):
            kind = ""
        if last in _IN_ONE and any(one.kind == "params" for one in every):
            kept |= {"weights"}
        if kind:
            root = params_root(Value(items=every))
        return Value(
            kind,
            frozenset(tag for tag in kept if not tag.startswith("part:") or kind),
            root=root,
            made=op,
            name="" if last[:1].islower() else last,
        )

    def _of_value(self, op: Op, of: Value, last: str, args: list[Value], tags: frozenset[str]) -> Value:
        """A method of a value."""
        if of.kind == "criterion":
            return Value("tensor", tags, made=op)
        if last in ("parameters", "named_parameters", "trainable_parameters", "get_params") and of.kind in (
            "model",
            "",
            "instance",
        ):
            if of.kind == "":
                of.kind = "model"
            values = Value("params", of.tags, root=of.base, attrs={"model": of}, made=op)
            if last == "named_parameters":
                each = Value("params", of.tags | {"element"}, root=of.base, attrs={"of": values})
                return Value(
                    "params", of.tags, root=of.base, made=op, element=Value("tuple", items=[Value("text"), each])
                )
            return values
        if of.kind == "model" and last in ("children", "modules", "named_modules", "named_children"):
            part = Value("model", of.tags, root=of.base, attrs={"parent": of})
            return Value(
                "iter", of.tags, element=part if "named" not in last else Value("tuple", items=[Value("text"), part])
            )
        if last in SAME and of.kind in ("model", "optimizer", "criterion"):
            return of
        if last in ("unwrap_model", "unwrap"):
            model = args[0] if args else of
            return Value("model", model.tags, root=model.base, attrs={"outer": model})
        if last == "state_dict":
            parts = {"local part"} if any(map(_asks_for_parts, op.contexts)) else set()
            return Value("state", (of.tags & {"rank"}) | parts, attrs={"of": of}, made=op)
        if last == "to_local":
            return Value("tensor", tags | {"local part"}, root=of.root, made=op, attrs={"of": of})
        if last == "scale" and of.kind == "scaler" and args:
            return Value("tensor", args[0].tags | {"scaled"}, root=args[0].root, made=op)
        if last in ("append", "extend", "add", "update", "insert", "setdefault"):
            value = args[-1] if args else Value()
            of.tags |= frozenset(
                tag
                for tag in value.tags
                if tag.startswith(("part:", "graph", "rank", "shard", "output", "unseeded", "random"))
            )
            if last == "append" and of.element is None and of.items is not None and len(of.items) < 8:
                of.append(value)
            if last == "update":
                of.attrs.update(value.attrs)
            return Value()
        if last == "get_world_size" or (last == "size" and not args and WORLD.search(of.name or "")):
            return Value("number", frozenset({"world"}))
        if last in SEEDS:
            return self._seeded(op, list(op.args))
        if last in RANDOM and (of.kind in ("generator",) or of.name.startswith(("np", "numpy", "random"))):
            if last == "shuffle" and args:
                args[0].tags |= of.tags | {"random"}
            return Value("tensor", of.tags | tags | {"random"} | own_draw(of), made=op)
        if last in RANDOM and last.endswith("_"):
            drawn = self._drawn(op, op.keywords)
            of.tags |= drawn
            return of
        if last in ("items", "values", "keys") and of.kind in ("dict", "state", ""):
            return Value("iter", of.tags, element=None, made=of.made, attrs={"of": of})
        if last in ("div", "div_", "true_divide", "divide") and args:
            result = combined(ast.Div(), of, args[0])
            result.made = op
            if last == "div_":
                of.tags = result.tags
                return of
            return result
        if last in ("mul", "mul_", "multiply") and args:
            result = combined(ast.Mult(), of, args[0])
            result.made = op
            if last == "mul_":
                of.tags = result.tags
                return of
            return result
        if last in WITHOUT_GRAPH or op.no_grad:
            return Value(
                "number"
                if last in ("item", "numel", "size")
                else of.kind
                if of.kind in ("tensor", "batch", "params")
                else "",
                tags - {"graph"},
                root=of.root,
                made=op,
                attrs={"of": of},
            )
        if last in ("backward", "step", "zero_grad", "load_state_dict"):
            return Value()
        if of.kind == "model" and last not in MODEL_METHODS and args and not ASKED.match(last):
            return self._forward(
                op, Value("model", of.tags, root=of.base, attrs=of.attrs, wrap=of.wrap, name=last), list(op.args)
            )
        kind = of.kind if of.kind in ("tensor", "params", "batch", "dataset") else ""
        return Value(
            kind,
            tags if of.kind != "model" else frozenset(tag for tag in tags if not tag.startswith("part:")),
            root=of.root or next((one.root for one in args if "graph" in one.tags), None),
            made=op,
            attrs={"of": of},
        )

    def _wrapped(self, op: Op, wrap: str, inner: Value | None) -> Value:
        inner = inner or Value()
        if inner.kind in ("", "class"):
            inner.kind = "model"
        if wrap == "fsdp2":
            inner.wrap = inner.base.wrap = "fsdp2"
            inner.tags |= {"wrapped"}
            inner.attrs["sharded"] = Value(made=op)
            return inner
        inner.base.attrs.setdefault("wrapped", Value(made=op))
        return Value(
            "model", inner.tags, name=inner.name, root=inner.base, wrap=wrap, made=op, attrs={"inner": inner},
            node=inner.node, module=inner.module, bases=inner.bases,
        )  # fmt: skip

    def _prepared(self, op: Op, args: list[Value], keywords: dict[str, Value]) -> Value:
        of = op.of
        wrap = (
            "fabric"
            if of is not None and of.name == "Fabric"
            else "ray"
            if "ray" in op.name or "train.torch" in op.name
            else "booster"
            if op.last == "boost"
            else "accelerate"
        )
        if not args and not keywords:
            return Value(made=op)
        given = [*args, *keywords.values()]
        if wrap == "booster" and not op.starred:
            given = [op.argument(name, place) or Value() for place, name in enumerate(_BOOSTED)]
        items = []
        for one in given:
            if one.kind == "model":
                items.append(self._wrapped(op, wrap, one))
            elif one.kind == "loader" and wrap == "booster":
                items.append(one)  # left as it is: only the plugin's prepare_dataloader divides
            elif one.kind in ("loader", "dataset") or op.last.startswith(("prepare_data", "setup_dataloaders")):
                items.append(Value("loader", one.tags | {"shard", "prepared"}, attrs=one.attrs, made=op, root=one))
            elif one.kind == "optimizer":
                items.append(
                    Value("optimizer", one.tags | {"prepared"}, one.name, attrs=one.attrs, root=one.root, made=one.made)
                )
            else:
                items.append(
                    Value(one.kind, one.tags | {"prepared"}, one.name, attrs=one.attrs, root=one.root, made=op)
                )
        return items[0] if len(items) == 1 else Value("tuple", items=items, made=op)

    def _seeded(self, op: Op, every: list[Value]) -> Value:
        tags = union(every) & {"rank", "world", "unseeded", "epoch", "count"}
        if any(value.has("loaded") for value in every):
            tags -= {"rank"}  # each from a file of its own may be the same for all
        of = op.of
        if op.name.startswith(".") and of is not None and of.made is not None and of.made.last == "Generator":
            of.kind = "generator"
            of.tags |= tags | {"seeded"}
            return of
        if op.last in ("default_rng", "RandomState"):
            return Value("generator", tags | ({"seeded"} if every else {"unseeded"}), name=op.name, made=op)
        self.seeds.append(op)
        return Value()

    def _drawn(self, op: Op, keywords: dict[str, Value]) -> frozenset[str]:
        """By which generator: one given, or the global one as it was last seeded."""
        tags = union([*op.args, *keywords.values()]) - {"graph"}
        if "generator" in keywords:
            return tags | {"random"} | own_draw(keywords["generator"])
        library = (
            "numpy" if op.name.startswith(("np", "numpy")) else "random" if op.name.startswith("random") else "torch"
        )
        seeds = [
            one
            for one in self.seeds
            if one.last in ("set_seed", "seed_everything")
            or (
                (library == "torch") == (one.last.startswith("manual_seed"))
                and (library != "random" or one.name.startswith("random"))
            )
        ]
        if not seeds:
            return tags | {"random", "unseeded"}
        given = union([*seeds[-1].args, *seeds[-1].keywords.values()])
        return tags | {"random"} | (given & {"rank"}) | ({"own draw"} if "rank" in given else frozenset())
