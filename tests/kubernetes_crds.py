"""What the custom kinds that we write may hold: only the fields that we use, named and typed as in the published CRDs.

JobSet: github.com/kubernetes-sigs/jobset, config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml at 08dfbdfd.
TrainJob: github.com/kubeflow/trainer, manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml at 8c0f5059.
"""

from __future__ import annotations

from typing import Any


def record(required: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


TEXT, TRUTH, NUMBER, ANY = {"type": "string"}, {"type": "boolean"}, {"type": "integer"}, {"type": "object"}
WORDS = {"type": "array", "items": TEXT}


def custom(api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return record(
        ("apiVersion", "kind", "metadata", "spec"), apiVersion={"const": api_version}, kind={"const": kind}, metadata=ANY,
        spec=spec,
    )  # fmt: skip


JOBSET = custom(
    "jobset.x-k8s.io/v1alpha2",
    "JobSet",
    record(
        network=record(enableDNSHostnames=TRUTH, publishNotReadyAddresses=TRUTH, subdomain=TEXT),
        failurePolicy=record(maxRestarts=NUMBER, restartStrategy={"enum": ["Recreate", "BlockingRecreate"]}, rules=ANY),
        suspend=TRUTH,
        ttlSecondsAfterFinished=NUMBER,
        replicatedJobs={
            "type": "array",
            "items": record(
                ("name", "template"), name=TEXT, replicas=NUMBER, template=ANY, groupName=TEXT, dependsOn=ANY
            ),
        },
    ),
)
TRAINJOB = custom(
    "trainer.kubeflow.org/v1alpha1",
    "TrainJob",
    record(
        ("runtimeRef",),
        runtimeRef=record(("name",), name=TEXT, apiGroup=TEXT, kind=TEXT),
        trainer=record(
            image=TEXT, command=WORDS, args=WORDS, env={"type": "array", "items": ANY}, numNodes={"type": "integer", "minimum": 1},
            numProcPerNode={"type": ["integer", "string"]}, resourcesPerNode=record(limits=ANY, requests=ANY, claims=ANY),
        ),
        suspend=TRUTH,
        activeDeadlineSeconds=NUMBER,
        managedBy=TEXT,
    ),
)  # fmt: skip
