"""Kubernetes: an indexed Job with its headless Service, a JobSet, or a Kubeflow TrainJob, by the official client.

Options: image (needed; it has paramedic and the program's packages), kind (job, jobset, trainjob), namespace, context,
claim (a volume claim for checkpoints and recordings, mounted at /claim), memory, runtime (of a TrainJob), workdir.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import tarfile
import time
from importlib import import_module
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.submit import rank_logs
from paramedic.submit.engines import Concern, State, manifests, write_launch
from paramedic.submit.engines.manifests import KINDS, kind_of, namespace_of
from paramedic.submit.spec import ENGINE, Plan

CAN_EXCLUDE = True
render = manifests.render
_MOST_CODE, _MOST_VARIABLE = 700_000, 90_000
"""Bytes: of a ConfigMap, and of an environment variable, before base64."""
_DISRUPTIONS = {
    "PreemptionByScheduler": "preempted",
    "PreemptionByKubeScheduler": "preempted",
    "DeletionByTaintManager": "node-lost",
    "DeletionByPodGC": "node-lost",
    "EvictionByEvictionAPI": "drained",
    "TerminationByKubelet": "drained",
}
_END_PATIENCE = 120.0


class _Cluster:
    """The client's APIs; its errors in one clear line."""

    def __init__(self, context: str | None) -> None:
        try:
            kubernetes = import_module("kubernetes")
        except ImportError as error:
            raise ParamedicError(f"the client is not installed here: pip install 'paramedic[k8s]' ({error})") from None
        named = os.environ.get("KUBECONFIG")
        try:
            if named or os.path.exists(os.path.expanduser("~/.kube/config")):
                kubernetes.config.load_kube_config(named, context)
            else:
                kubernetes.config.load_incluster_config()
        except Exception as error:
            raise ParamedicError(f"Kubernetes: no usable configuration: {_line(error)}") from None
        self.core, self.batch = kubernetes.client.CoreV1Api(), kubernetes.client.BatchV1Api()
        self.custom = kubernetes.client.CustomObjectsApi()
        self._missing = kubernetes.client.ApiException

    def ask(self, work: Any, *arguments: Any, **named: Any) -> Any:
        """The answer as the API wrote it, not as some client reads it; None where there is no such thing."""
        try:
            answer = work(*arguments, **named, _request_timeout=30, _preload_content=False)
            text = answer.data.decode("utf-8", "replace")
            return json.loads(text) if "json" in (answer.headers.get("Content-Type") or "") else text
        except self._missing as error:
            if error.status == 404:
                return None
            raise ParamedicError(f"Kubernetes: {error.status} {error.reason}: {_said(error)}") from None
        except Exception as error:
            raise ParamedicError(f"Kubernetes: not reached: {_line(error)}") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _said(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])[:300]
    except (TypeError, ValueError, KeyError):
        return ""


def _cluster(plan: Plan) -> _Cluster:
    return _Cluster(plan.spec.options.get("context"))


def check(plan: Plan) -> list[Concern]:
    try:
        render(plan)
        cluster = _cluster(plan)
        cluster.ask(cluster.core.list_namespaced_pod, namespace_of(plan), limit=1)
        if plan.spec.code:
            _packed(plan)
    except ParamedicError as error:
        return [Concern(True, str(error))]
    return []


def submit(plan: Plan) -> str:
    write_launch(plan)
    cluster, namespace, kind = _cluster(plan), namespace_of(plan), kind_of(plan)
    made: list[dict[str, Any]] = []
    try:
        for body in render(plan):
            if body["kind"] == "ConfigMap":
                text = base64.b64encode(_packed(plan)).decode()
                body.update({"data": {"code": text}} if kind == "trainjob" else {"binaryData": {"code.tar.gz": text}})
            _create(cluster, namespace, kind, body)
            made.append(body)
    except ParamedicError:
        _delete(cluster, plan)
        raise
    return f"{namespace}/{plan.engine_name}"


def _create(cluster: _Cluster, namespace: str, kind: str, body: dict[str, Any]) -> None:
    if body["kind"] == "ConfigMap":
        done = cluster.ask(cluster.core.create_namespaced_config_map, namespace, body)
    elif body["kind"] == "Service":
        done = cluster.ask(cluster.core.create_namespaced_service, namespace, body)
    elif kind == "job":
        done = cluster.ask(cluster.batch.create_namespaced_job, namespace, body)
    else:
        group, version, _, plural = KINDS[kind]
        done = cluster.ask(cluster.custom.create_namespaced_custom_object, group, version, namespace, plural, body)
    if done is None:
        raise ParamedicError(
            f"Kubernetes: {body['kind']}: the cluster does not know this kind, or the namespace {namespace}"
        )


def _packed(plan: Plan) -> bytes:
    """The code tree, the same bytes for the same content."""
    folder, most = plan.spec.code, _MOST_VARIABLE if kind_of(plan) == "trainjob" else _MOST_CODE
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for place, folders, names in os.walk(folder):
            folders.sort()
            for name in sorted(names):
                path = os.path.join(place, name)
                info = tarfile.TarInfo(os.path.relpath(path, folder))
                info.size, info.mode = os.path.getsize(path), 0o644
                with open(path, "rb") as file:
                    tar.addfile(info, file)
    if len(raw.getvalue()) > most:
        raise ParamedicError(f"{folder}: its code is over {most // 1000} kB packed: put it into the image")
    return raw.getvalue()


def find(plan: Plan) -> str | None:
    return f"{namespace_of(plan)}/{plan.engine_name}" if _get(_cluster(plan), plan) is not None else None


def _get(cluster: _Cluster, plan: Plan) -> Any:
    namespace, kind = namespace_of(plan), kind_of(plan)
    if kind == "job":
        return cluster.ask(cluster.batch.read_namespaced_job, plan.engine_name, namespace)
    group, version, _, plural = KINDS[kind]
    return cluster.ask(cluster.custom.get_namespaced_custom_object, group, version, namespace, plural, plan.engine_name)


def poll(id: str, plan: Plan) -> State:
    cluster = _cluster(plan)
    found = _get(cluster, plan)
    pods = _pods(cluster, namespace_of(plan), plan.engine_name)
    if found is None:
        return State("ended", None, "cancelled-outside", (), "the object is gone")
    status = found.get("status") or {}
    met = {one["type"]: one for one in status.get("conditions") or [] if one.get("status") == "True"}
    if "Complete" in met or "Completed" in met:
        return State("ended", 0)
    reason, hosts, code = _why(pods)
    if "Failed" in met:
        failed = met["Failed"]
        if failed.get("reason") == "DeadlineExceeded":
            reason = "time-limit"
        return State("ended", code or 1, reason, hosts, f"{failed.get('reason', '')}: {failed.get('message', '')}")
    running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
    return State("started" if len(running) >= plan.spec.nodes else "queued", hosts=_nodes(running))


def _pods(cluster: _Cluster, namespace: str, name: str) -> list[dict[str, Any]]:
    """By the labels that Jobs and JobSets give their pods."""
    for label in ("batch.kubernetes.io/job-name", "job-name", "jobset.sigs.k8s.io/jobset-name"):
        found = cluster.ask(cluster.core.list_namespaced_pod, namespace, label_selector=f"{label}={name}")
        if found is not None and found["items"]:
            return list(found["items"])
    return []


def _nodes(pods: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")))


def _why(pods: list[dict[str, Any]]) -> tuple[str, tuple[str, ...], int | None]:
    """What kubelet and scheduler say about the first pod that failed by their doing; its node; its exit code."""
    codes: list[int] = []
    for pod in pods:
        status = pod["status"]
        for one in status.get("conditions") or []:
            if one.get("type") == "DisruptionTarget" and one.get("status") == "True":
                reason = _DISRUPTIONS.get(one.get("reason", ""), "drained")
                return reason, _nodes([pod]) if reason == "node-lost" else (), None
        if status.get("reason") in ("NodeLost", "NodeShutdown", "Terminated"):
            return "node-lost", _nodes([pod]), None
        for one in status.get("containerStatuses") or []:
            ended = (one.get("state") or {}).get("terminated") or {}
            if ended.get("reason") == "OOMKilled":
                return "out-of-memory", _nodes([pod]), 137
            if ended.get("exitCode"):
                codes.append(int(ended["exitCode"]))
    return "", (), codes[0] if codes else None


def logs(id: str, plan: Plan) -> None:
    folder = os.path.join(plan.folder, ENGINE)
    count = _fetch(_cluster(plan), namespace_of(plan), plan.engine_name, folder)
    pages = [os.path.join(folder, f"pod-{number}.log") for number in range(count)]
    rank_logs.share_out(pages, plan.folder, plan.spec.world_size)


def _fetch(cluster: _Cluster, namespace: str, name: str, folder: str) -> int:
    pods = _pods(cluster, namespace, name)
    for number, pod in enumerate(pods):
        pod_name = pod["metadata"]["name"]
        text = cluster.ask(cluster.core.read_namespaced_pod_log, pod_name, namespace) or ""
        seen = cluster.ask(
            cluster.core.list_namespaced_event, namespace, field_selector=f"involvedObject.name={pod_name}"
        )  # fmt: skip
        with open(os.path.join(folder, f"pod-{number}.log"), "w", encoding="utf-8") as file:
            file.write(text)
        with open(os.path.join(folder, f"pod-{number}.events"), "w", encoding="utf-8") as file:
            file.write(_described(pod, seen["items"] if seen is not None else []))
    return len(pods)


def _described(pod: dict[str, Any], events: list[dict[str, Any]]) -> str:
    """In the words of `kubectl describe`."""
    status, found = pod["status"], [f"Name: {pod['metadata']['name']}", f"Node: {pod['spec'].get('nodeName', '')}"]
    found += [
        f"Status: {status.get('phase', '')}",
        f"Reason: {status.get('reason', '')}",
        f"Message: {status.get('message', '')}",
    ]
    for one in status.get("containerStatuses") or []:
        ended = (one.get("state") or {}).get("terminated") or {}
        found += [f"Last State: Terminated  Reason: {ended.get('reason', '')}  Exit Code: {ended.get('exitCode', '')}"]
    for event in events:
        found.append(f"{event.get('type', '')}  {event.get('reason', '')}  {event.get('message', '')}")
    return "\n".join(found) + "\n"


def signal(id: str, plan: Plan, number: int) -> None:
    raise ParamedicError("Kubernetes sends no signals to pods: cancel ends them")


def cancel(id: str, plan: Plan) -> None:
    cluster = _cluster(plan)
    _delete(cluster, plan)
    until = time.monotonic() + _END_PATIENCE
    while _get(cluster, plan) is not None or _pods(cluster, namespace_of(plan), plan.engine_name):
        if time.monotonic() > until:
            raise ParamedicError(f"Kubernetes: {id}: its pods are still there after {_END_PATIENCE:.0f} s")
        time.sleep(0.5)


def _delete(cluster: _Cluster, plan: Plan) -> None:
    namespace, kind, name = namespace_of(plan), kind_of(plan), plan.engine_name
    if kind == "job":
        cluster.ask(cluster.batch.delete_namespaced_job, name, namespace, propagation_policy="Foreground")
        cluster.ask(cluster.core.delete_namespaced_service, name, namespace)
    else:
        group, version, _, plural = KINDS[kind]
        cluster.ask(
            cluster.custom.delete_namespaced_custom_object, group, version, namespace, plural, name,
            propagation_policy="Foreground",
        )  # fmt: skip
    if plan.spec.code:
        cluster.ask(cluster.core.delete_namespaced_config_map, name, namespace)


def fetch(name: str, folder: str) -> list[str]:
    """`k8s:NAME` or `k8s:NAMESPACE/NAME`, of a Job, a JobSet or a TrainJob."""
    namespace, _, own = name.rpartition("/")
    if not _fetch(_Cluster(None), namespace or "default", own, folder):
        raise ParamedicError(
            f"k8s:{name}: no pods of such a Job, JobSet or TrainJob in namespace {namespace or 'default'}"
        )
    return []
