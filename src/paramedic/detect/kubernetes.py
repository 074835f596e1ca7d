"""Kubernetes and Compose files of training jobs: what the API refuses, and what starves ranks in containers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paramedic.detect.setup import Hit, Part, Setup

_CONTAINER = re.compile(r"(.*?)(?<!init)([cC]ontainers)\[(\d+)\]$")
_GPU = re.compile(r"(?:nvidia\.com|amd\.com|gpu\.intel\.com)/[\w.-]*gpu[\w.-]*|nvidia\.com/mig-.*")
_TRAINING = ("PyTorchJob", "MPIJob", "TFJob", "Job", "JobSet", "RayJob", "RayCluster", "TrainJob", "Pod", "StatefulSet")


def _containers(part: Part) -> Iterator[tuple[str, str]]:
    """(key of the pod's spec, key of the container)."""
    for key, fact in part.facts.items():
        if fact.value == {} and (found := _CONTAINER.match(key)) and "initContainers" not in key:
            yield found[1].rstrip("."), key


def _gpus(part: Part, container: str, which: str) -> tuple[str, int] | None:
    for name, fact in part.below(f"{container}.resources.{which}").items():
        value = fact.value
        if _GPU.fullmatch(name) and (isinstance(value, int) or (isinstance(value, str) and value.isdigit())):
            return f"{container}.resources.{which}.{name}", int(value)
    return None


def small_shared_memory(setup: Setup) -> Iterator[Hit]:
    """A pod's /dev/shm has 64 MiB unless a volume in memory is mounted there."""
    for part in _jobs(setup):
        for spec, container in _containers(part):
            gpus = _gpus(part, container, "limits")
            if not gpus or gpus[1] < 1 or part.get(_join(spec, "hostIPC")) is True:
                continue
            mounts = [
                f.value
                for k, f in part.below(container).items()
                if k.startswith("volumeMounts[") and k.endswith(".mountPath")
            ]
            if not any(isinstance(path, str) and path.rstrip("/") == "/dev/shm" for path in mounts):
                yield Hit(part.quoted(gpus[0]), {"gpus": gpus[1]})


def gpu_request_without_limit(setup: Setup) -> Iterator[Hit]:
    for part in _jobs(setup):
        for _, container in _containers(part):
            wanted, most = _gpus(part, container, "requests"), _gpus(part, container, "limits")
            if wanted and (most is None or most[1] != wanted[1]):
                limit = "none" if most is None else most[1]
                yield Hit(part.quoted(wanted[0], most[0] if most else ""), {"request": wanted[1], "limit": limit})


def container_name(setup: Setup) -> Iterator[Hit]:
    for part in _jobs(setup):
        if part.get("kind") != "PyTorchJob":
            continue
        by_spec: dict[str, list[str]] = {}
        for spec, container in _containers(part):
            by_spec.setdefault(spec, []).append(container)
        for containers in by_spec.values():
            names = [part.get(f"{container}.name") for container in containers]
            if "pytorch" not in names and all(isinstance(name, str) for name in names):
                key = f"{containers[0]}.name"
                yield Hit(part.quoted(key), {"name": names[0], "key": key, "section": part.number})


def job_restart_policy(setup: Setup) -> Iterator[Hit]:
    for part in _jobs(setup):
        key = "spec.template.spec.restartPolicy"
        if part.get("kind") == "Job" and (
            part.get(key) == "Always" or (part.lacks(key) and part.has("spec.template.spec"))
        ):
            quoted = part.quoted(key) or part.quoted("spec.template.spec")
            yield Hit(quoted, {"policy": part.get(key) or "Always, the default", "section": part.number})


def job_not_indexed(setup: Setup) -> Iterator[Hit]:
    for part in _jobs(setup):
        count = part.number_of("spec.parallelism")
        if part.get("kind") == "Job" and count and count > 1 and part.get("spec.completionMode") != "Indexed":
            if any((_gpus(part, container, "limits") or ("", 0))[1] for _, container in _containers(part)):
                yield Hit(
                    part.quoted("spec.parallelism", "spec.completionMode"), {"count": count, "section": part.number}
                )


def ranks_beyond_gpus(setup: Setup) -> Iterator[Hit]:
    for part in _jobs(setup):
        ranks = part.get("spec.nprocPerNode")
        number = int(ranks) if isinstance(ranks, str) and ranks.isdigit() else ranks
        if part.get("kind") != "PyTorchJob" or not isinstance(number, int) or isinstance(number, bool):
            continue
        for _, container in _containers(part):
            gpus = _gpus(part, container, "limits")
            if gpus and number > gpus[1]:
                yield Hit(part.quoted("spec.nprocPerNode", gpus[0]), {"ranks": number, "gpus": gpus[1]})


def rdma_without_lock(setup: Setup) -> Iterator[Hit]:
    """RDMA pins memory, which needs the capability IPC_LOCK."""
    for part in _jobs(setup):
        for _, container in _containers(part):
            limits = part.below(f"{container}.resources.limits")
            rdma = next(
                (
                    name
                    for name in limits
                    if re.match(r"(?:rdma|nvidia\.com/.*rdma|.*hca|vpc\.amazonaws\.com/efa)", name)
                ),
                None,
            )
            added = part.get(f"{container}.securityContext.capabilities.add")
            privileged = part.get(f"{container}.securityContext.privileged") is True
            if rdma and not privileged and not (isinstance(added, list) and {"IPC_LOCK", "ALL"} & set(map(str, added))):
                if "efa" not in rdma:
                    yield Hit((limits[rdma],), {"resource": rdma})


def replicas(setup: Setup) -> Iterator[Hit]:
    for part in _jobs(setup):
        for key in part.facts:
            if key.endswith(".maxReplicas"):
                low, high = part.number_of(key.replace("maxReplicas", "minReplicas")), part.number_of(key)
                if low is not None and high is not None and low > high:
                    yield Hit(part.quoted(key.replace("maxReplicas", "minReplicas"), key), {"low": low, "high": high})


def compose_shared_memory(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("compose"):
        for key, fact in part.facts.items():
            service = re.fullmatch(r"services\.[^.]+", key)
            if not service or fact.value != {}:
                continue
            inner = part.below(key)
            gpu = inner.get("runtime") and inner["runtime"].value == "nvidia"
            devices = any(k.startswith("deploy.resources.reservations.devices[") and k.endswith("]") for k in inner)
            if (gpu or devices) and "shm_size" not in inner and "ipc" not in inner:
                yield Hit((fact,), {"service": key.removeprefix("services."), "section": part.number})


def _jobs(setup: Setup) -> Iterator[Part]:
    return (part for part in setup.of("kubernetes") if part.get("kind") in _TRAINING)


def _join(spec: str, name: str) -> str:
    return f"{spec}.{name}" if spec else name
