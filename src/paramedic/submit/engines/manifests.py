"""What Kubernetes is given: an indexed Job with its headless Service, a JobSet, or a Kubeflow TrainJob: pure."""

from __future__ import annotations

import json
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.submit.spec import Plan, launch

KINDS = {
    "job": ("batch", "v1", "Job", "jobs"),
    "jobset": ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
    "trainjob": ("trainer.kubeflow.org", "v1alpha1", "TrainJob", "trainjobs"),
}
_PORT = "29500"
_UNPACK = "mkdir -p /tmp/code && tar -xzf /code/code.tar.gz -C /tmp/code && exec "
_UNPACK_VARIABLE = 'mkdir -p /tmp/code && printf %s "$PARAMEDIC_CODE" | base64 -d | tar -xz -C /tmp/code && exec '
_NODE = "python -m paramedic.submit.node /run/paramedic-attempt"


def kind_of(plan: Plan) -> str:
    kind = plan.spec.options.get("kind", "job")
    if kind not in KINDS:
        raise ParamedicError(f"option kind={kind}: not one of {', '.join(KINDS)}")
    return kind


def render(plan: Plan) -> list[dict[str, Any]]:
    """The manifests, in the order in which they are created; the code comes into its ConfigMap when it is submitted."""
    kind = kind_of(plan)
    bodies = [_config_map(plan)] if plan.spec.code else []
    if kind == "job":
        return [*bodies, _service(plan), _object(plan, "job", _job_spec(plan))]
    return [*bodies, _object(plan, kind, _jobset(plan) if kind == "jobset" else _trainjob(plan))]


def _object(plan: Plan, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    group, version, name, _ = KINDS[kind]
    return {"apiVersion": f"{group}/{version}", "kind": name, "metadata": _metadata(plan), "spec": spec}


def _metadata(plan: Plan) -> dict[str, Any]:
    return {"name": plan.engine_name, "namespace": namespace_of(plan), "labels": _labels(plan)}


def _labels(plan: Plan) -> dict[str, str]:
    return {
        "app.kubernetes.io/managed-by": "paramedic",
        "paramedic-job": plan.job,
        "paramedic-attempt": str(plan.number),
    }


def namespace_of(plan: Plan) -> str:
    return plan.spec.options.get("namespace", "default")


def _config_map(plan: Plan) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(plan)}


def _service(plan: Plan) -> dict[str, Any]:
    """Headless: it gives each pod a name under which the others find it, before it is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(plan),
        "spec": {
            "clusterIP": "None",
            "selector": {"paramedic-job": plan.job, "paramedic-attempt": str(plan.number)},
            "publishNotReadyAddresses": True,
            "ports": [{"name": "rendezvous", "port": int(_PORT)}],
        },
    }


def _job_spec(plan: Plan) -> dict[str, Any]:
    """Kubernetes does not start it again by itself: what to do after a failure is decided by its cause."""
    spec = plan.spec
    found: dict[str, Any] = {
        "completions": spec.nodes,
        "parallelism": spec.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"metadata": {"labels": _labels(plan)}, "spec": _pod(plan)},
    }
    if spec.time_limit_s:
        found["activeDeadlineSeconds"] = spec.time_limit_s
    return found


def _jobset(plan: Plan) -> dict[str, Any]:
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": plan.engine_name},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": _job_spec(plan)}}],
    }


def _trainjob(plan: Plan) -> dict[str, Any]:
    spec = plan.spec
    container = _container(plan)
    limit = {"activeDeadlineSeconds": spec.time_limit_s} if spec.time_limit_s else {}
    trainer = {
        "image": container["image"],
        "command": container["command"],
        "env": container["env"],
        "numNodes": spec.nodes,
        "resourcesPerNode": container["resources"],
    }
    return {"runtimeRef": {"name": spec.options.get("runtime", "torch-distributed")}, "trainer": trainer, **limit}


def _pod(plan: Plan) -> dict[str, Any]:
    volumes: list[dict[str, Any]] = []
    if plan.spec.code:
        volumes.append({"name": "code", "configMap": {"name": plan.engine_name}})
    if "claim" in plan.spec.options:
        volumes.append({"name": "claim", "persistentVolumeClaim": {"claimName": plan.spec.options["claim"]}})
    found: dict[str, Any] = {"restartPolicy": "Never", "containers": [_container(plan)]}
    if kind_of(plan) == "job":
        found["subdomain"] = plan.engine_name
    if volumes:
        found["volumes"] = volumes
    if plan.exclude:
        without = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(plan.exclude)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [without]}]}
        found["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return found


def _container(plan: Plan) -> dict[str, Any]:
    spec = plan.spec
    if "image" not in spec.options:
        raise ParamedicError("--engine kubernetes needs an image: --option image=registry/name:tag")
    limits = {"cpu": str(spec.ranks_per_node * spec.cpus_per_rank)}
    if spec.gpus_per_rank:
        limits["nvidia.com/gpu"] = str(spec.ranks_per_node * spec.gpus_per_rank)
    if "memory" in spec.options:
        limits["memory"] = spec.options["memory"]
    mounts = [{"name": "code", "mountPath": "/code"}] if spec.code else []
    mounts += [{"name": "claim", "mountPath": "/claim"}] if "claim" in spec.options else []
    found: dict[str, Any] = {
        "name": "node",
        "image": spec.options["image"],
        "command": ["sh", "-c", _unpack(plan) + _NODE],
        "env": _environment(plan),
        "resources": {"limits": limits},
    }
    if mounts:
        found["volumeMounts"] = mounts
    return found


def _unpack(plan: Plan) -> str:
    """A TrainJob's pods are its runtime's: no volume of ours, so the code comes in a variable."""
    if not plan.spec.code:
        return "exec "
    return _UNPACK_VARIABLE if kind_of(plan) == "trainjob" else _UNPACK


def _environment(plan: Plan) -> list[dict[str, Any]]:
    """A TrainJob's runtime says itself where nodes meet."""
    kind = kind_of(plan)
    said = launch(plan) | {
        "python": "python",
        "workdir": plan.spec.options.get("workdir", "/tmp/code" if plan.spec.code else "/"),
    }
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    found: list[dict[str, Any]] = [{"name": "PARAMEDIC_LAUNCH_JSON", "value": json.dumps(said, sort_keys=True)}]
    if kind != "trainjob":
        head = f"{plan.engine_name}-0.{plan.engine_name}"
        head = head if kind == "job" else f"{plan.engine_name}-node-0-0.{plan.engine_name}"
        found += [{"name": "PARAMEDIC_HEAD", "value": head}, {"name": "PARAMEDIC_PORT", "value": _PORT}]
    elif plan.spec.code:
        key = {"name": plan.engine_name, "key": "code"}
        found.append({"name": "PARAMEDIC_CODE", "valueFrom": {"configMapKeyRef": key}})
    return [*found, {"name": "PARAMEDIC_NODE", "valueFrom": {"fieldRef": {"fieldPath": index}}}]
