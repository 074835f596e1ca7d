"""Kubernetes: manifests against the published schemas, and the official client against a server of ours. No cluster is
run here; the server answers as a cluster does and keeps what it is given."""

from __future__ import annotations

import base64
import http.server
import io
import json
import re
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import jsonschema
import pytest

from paramedic import ParamedicError
from paramedic.commands import main
from paramedic.submit import engines, rank_logs
from paramedic.submit.engines import kubernetes as engine
from paramedic.submit.engines.manifests import render

sys.path.insert(0, str(Path(__file__).parent))
from kubernetes_crds import JOBSET, TRAINJOB
from test_submit import PLAN, plan_for

pytest.importorskip("kubernetes")
NAME = PLAN.engine_name


# -- manifests -----------------------------------------------------------------------------------------------------


def known(body: dict[str, Any], kind: str) -> Any:
    """What the official client's models, made from Kubernetes' OpenAPI, make of it: unknown fields are not in it."""
    model = getattr(import_module("kubernetes.client.models"), kind)
    client = import_module("kubernetes.client").ApiClient()
    return client.sanitize_for_serialization(model.from_dict(json.loads(json.dumps(body))))


@pytest.mark.parametrize("name", ["kubernetes-job", "kubernetes-jobset", "kubernetes-trainjob"])
def test_manifests_are_as_the_published_schemas_want_them(name: str) -> None:
    kinds = {"Job": "V1Job", "Service": "V1Service", "ConfigMap": "V1ConfigMap"}
    for body in render(plan_for(name)):
        if body["kind"] in kinds:
            assert known(body, kinds[body["kind"]]) == body
        else:
            jsonschema.validate(body, JOBSET if body["kind"] == "JobSet" else TRAINJOB)
        if body["kind"] == "JobSet":
            for job in body["spec"]["replicatedJobs"]:
                assert known(job["template"], "V1JobTemplateSpec") == job["template"]


def test_the_schemas_refuse_what_is_wrong() -> None:
    job = render(plan_for("kubernetes-job"))[-1]
    job["spec"]["template"]["spec"]["containers"][0]["images"] = "x"
    assert known(job, "V1Job") != job
    del job["spec"]["template"]
    with pytest.raises(ValueError, match="template"):
        known(job, "V1Job")
    trainjob = render(plan_for("kubernetes-trainjob"))[-1]
    trainjob["spec"]["trainer"]["numNodes"] = "two"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(trainjob, TRAINJOB)


# -- the client ----------------------------------------------------------------------------------------------------


class Cluster(http.server.ThreadingHTTPServer):
    """Keeps objects by their path; pods and events are what a test puts there."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.logs: dict[str, str] = {}
        self.requests: list[str] = []
        self.refuse = ""

    def pod(self, number: int, **status: Any) -> dict[str, Any]:
        found = {
            "metadata": {"name": f"{NAME}-{number}-x", "labels": {"batch.kubernetes.io/job-name": NAME}},
            "spec": {"nodeName": f"node-0{number}", "containers": []},
            "status": status,
        }
        self.pods.append(found)
        return found


class Handler(http.server.BaseHTTPRequestHandler):
    server: Cluster

    def answer(self, code: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def missing(self) -> None:
        self.answer(404, {"kind": "Status", "message": "not found", "code": 404})

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        self.server.requests.append(f"GET {path}")
        if hit := re.search(r"/pods/([^/]+)/log$", path):
            self.answer(200, self.server.logs.get(hit[1], ""))
        elif path.endswith("/pods"):
            wanted = "batch.kubernetes.io/job-name" in unquote(query) or "labelSelector" not in query
            self.answer(200, {"items": self.server.pods if wanted else []})
        elif path.endswith("/events"):
            self.answer(200, {"items": self.server.events})
        elif path in self.server.objects:
            self.answer(200, self.server.objects[path])
        else:
            self.missing()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(f"POST {self.path}")
        if self.server.refuse and self.path.endswith(self.server.refuse):
            self.answer(403, {"kind": "Status", "message": "exceeded quota: gpus", "code": 403})
            return
        self.server.objects[f"{self.path}/{body['metadata']['name']}"] = body
        self.answer(201, body)

    def do_DELETE(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append(f"DELETE {path}")
        if self.server.objects.pop(path, None) is None:
            self.missing()
            return
        if "/jobs/" in path or "/jobsets/" in path:
            self.server.pods.clear()
        self.answer(200, {"kind": "Status", "status": "Success"})

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with Cluster() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "users": [{"name": "u", "user": {}}],
        }  # fmt: skip
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield server
        server.shutdown()


def plan_in(folder: Path, name: str = "kubernetes-job") -> Any:
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("def train(cfg): ...")
    plan = plan_for(name)
    return replace(plan, folder=str(folder / "attempt"), spec=replace(plan.spec, code=str(folder / "code")))


JOB = f"/apis/batch/v1/namespaces/lab/jobs/{NAME}"


def test_a_job_is_created_with_its_service_and_its_code(cluster: Cluster, tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    assert engine.check(plan) == []
    assert engine.find(plan) is None
    assert engine.submit(plan) == engine.find(plan) == f"lab/{NAME}"
    assert [one for one in cluster.requests if one.startswith("POST")] == [
        "POST /api/v1/namespaces/lab/configmaps", "POST /api/v1/namespaces/lab/services", "POST /apis/batch/v1/namespaces/lab/jobs",
    ]  # fmt: skip
    packed = base64.b64decode(cluster.objects[f"/api/v1/namespaces/lab/configmaps/{NAME}"]["binaryData"]["code.tar.gz"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == ["train.py"]


@pytest.mark.parametrize(("kind", "plural"), [("jobset", "jobsets"), ("trainjob", "trainjobs")])
def test_custom_kinds_go_to_their_own_api(kind: str, plural: str, cluster: Cluster, tmp_path: Path) -> None:
    plan = plan_in(tmp_path, f"kubernetes-{kind}")
    engine.submit(plan)
    assert any(one.startswith("POST /apis/") and one.endswith(f"/{plural}") for one in cluster.requests)
    assert engine.poll("", plan).phase == "queued"
    engine.cancel("", plan)
    assert engine.find(plan) is None


def test_what_cannot_be_created_leaves_nothing_behind(cluster: Cluster, tmp_path: Path) -> None:
    cluster.refuse = "/jobs"
    with pytest.raises(ParamedicError, match="exceeded quota: gpus"):
        engine.submit(plan_in(tmp_path))
    assert cluster.objects == {}


def ended(cluster: Cluster, kind: str, **more: Any) -> None:
    cluster.objects[JOB]["status"] = {"conditions": [{"type": kind, "status": "True", **more}]}


DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
OOM = [{"name": "node", "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]
CRASH = [{"name": "node", "state": {"terminated": {"reason": "Error", "exitCode": 3}}}]


@pytest.mark.parametrize(
    ("status", "failed", "reason", "hosts", "code"),
    [
        ({"containerStatuses": OOM}, {}, "out-of-memory", ("node-01",), 137),
        ({"containerStatuses": CRASH}, {}, "", (), 3),
        ({"conditions": [{**DISRUPTED, "reason": "PreemptionByScheduler"}]}, {}, "preempted", (), 1),
        ({"conditions": [{**DISRUPTED, "reason": "DeletionByTaintManager"}]}, {}, "node-lost", ("node-01",), 1),
        ({}, {"reason": "DeadlineExceeded"}, "time-limit", (), 1),
    ],
)
def test_an_end_is_told_in_our_words(
    status: Any, failed: Any, reason: str, hosts: Any, code: int, cluster: Cluster, tmp_path: Path
) -> None:
    plan = plan_in(tmp_path)
    engine.submit(plan)
    cluster.pod(0, phase="Running")
    cluster.pod(1, phase="Running")
    assert engine.poll("", plan).phase == "started"
    cluster.pods[1]["status"] = {"phase": "Failed", **status}
    ended(cluster, "Failed", **failed)
    found = engine.poll("", plan)
    assert (found.phase, found.reason, found.hosts, found.code) == ("ended", reason, hosts, code)


def test_a_good_end_and_a_deletion_by_somebody_else(cluster: Cluster, tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    engine.submit(plan)
    ended(cluster, "Complete")
    assert (engine.poll("", plan).phase, engine.poll("", plan).code) == ("ended", 0)
    del cluster.objects[JOB]
    assert engine.poll("", plan).reason == "cancelled-outside"


def test_what_each_rank_prints_is_had_while_the_pods_run(cluster: Cluster, tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    (Path(plan.folder) / "engine").mkdir(parents=True, exist_ok=True)
    engine.submit(plan)
    for number in (0, 1):
        cluster.pod(number, phase="Running")
    cluster.logs = {f"{NAME}-0-x": "a note\n[rank0]: step 1\n[rank1]: step 1\n", f"{NAME}-1-x": "[rank99]: no such\n"}
    engine.logs("", plan)
    known = rank_logs.files(plan.folder, 2)
    assert {rank: Path(path).read_text() for rank, (path,) in known.items()} == {0: "step 1\n", 1: "step 1\n"}
    with open(known[0][0], "rb") as following:
        assert following.read() == b"step 1\n"
        cluster.logs[f"{NAME}-0-x"] += "[rank0]: step 2\n"
        engine.logs("", plan)
        assert following.read() == b"step 2\n"


def test_cancel_removes_all_of_it(cluster: Cluster, tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    engine.submit(plan)
    cluster.pod(0, phase="Running")
    engine.cancel("", plan)
    assert (cluster.objects, cluster.pods) == ({}, [])


def test_a_job_of_somebody_else_is_diagnosed(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.pod(0, phase="Running")
    lost = cluster.pod(1, phase="Failed", reason="Evicted", message="The node was low on resource: memory.")
    cluster.logs[cluster.pods[0]["metadata"]["name"]] = (
        "[rank0]: RuntimeError: Connection closed by peer [10.0.0.2]:3411\n"
    )
    cluster.events = [{
        "metadata": {"name": "e"}, "involvedObject": {"name": lost["metadata"]["name"]}, "type": "Warning", "reason": "Evicted",
        "message": "The node was low on resource: memory.",
    }]  # fmt: skip
    assert main(["diagnose", f"k8s:lab/{NAME}", "--format", "json"]) == 1
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict["rule"].startswith(("JOB", "HOST"))


def test_a_cluster_that_does_not_answer_is_said(cluster: Cluster, tmp_path: Path) -> None:
    plan = plan_in(tmp_path)
    cluster.shutdown()
    cluster.server_close()
    assert "Kubernetes: not reached" in engine.check(plan)[0].text


def test_an_unknown_job_is_said(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "k8s:nobody"]) == 2
    assert "no pods of such a Job" in capsys.readouterr().err


def test_the_engine_has_all_that_an_engine_has() -> None:
    for name in ("local", "ray", "slurm", "kubernetes"):
        for function in ("render", "check", "submit", "find", "poll", "logs", "signal", "cancel", "CAN_EXCLUDE"):
            assert hasattr(engines.get(name), function)
