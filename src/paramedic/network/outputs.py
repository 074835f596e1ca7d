"""A plan in the words of each launcher. Hosts that need different values each get their own line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paramedic.detect.adapters import good_ports, hca_list
from paramedic.detect.topology import Node
from paramedic.network.plan import Plan
from paramedic.network.world import VARIABLES, Endpoint

VERSION = 1
_JOIN_SECONDS = 600
_SKEW_TIMES = 3


@dataclass(frozen=True, slots=True)
class Job:
    """What a plan does not choose itself."""

    nproc: int = 1
    script: str = "train.py"
    nodes: Mapping[str, Node] | None = None

    def timeout(self) -> int:
        """To join: ten minutes, or three times what the hosts came apart."""
        began = [
            value for node in (self.nodes or {}).values() if isinstance(value := node.value("started"), int | float)
        ]
        apart = max(began) - min(began) if len(began) > 1 else 0.0
        return max(_JOIN_SECONDS, int(apart * _SKEW_TIMES))


def settings(plan: Plan, host: str, job: Job) -> dict[str, str]:
    """The environment of one host, without rank numbers."""
    made = {"MASTER_ADDR": plan.address, "MASTER_PORT": str(plan.port)}
    for plane, chosen in plan.endpoints.items():
        exact = "=" if plane == "nccl" else ""
        made[VARIABLES[plane]] = f"{exact}{chosen[host].interface}"
    made["TP_SOCKET_IFNAME"] = plan.endpoints["gloo"][host].interface
    if plan.endpoints["gloo"][host].family == 6:
        made["NCCL_SOCKET_FAMILY"] = "AF_INET6"
    node = (job.nodes or {}).get(host)
    if node and (ports := good_ports(node)):
        made["NCCL_IB_HCA"] = hca_list(ports)
    return made


def shared(plan: Plan, job: Job) -> dict[str, str]:
    """What all hosts have alike."""
    every = [settings(plan, host, job) for host in plan.order]
    return {name: value for name, value in every[0].items() if all(one.get(name) == value for one in every)}


def own(plan: Plan, host: str, job: Job) -> dict[str, str]:
    common = shared(plan, job)
    return {name: value for name, value in settings(plan, host, job).items() if name not in common}


def _exports(values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield f"export {name}={shlex.quote(value)}"


def environment(plan: Plan, job: Job) -> str:
    """To be sourced on every host; what differs is chosen by the host's name."""
    lines = [
        "# the same on every host",
        *_exports(shared(plan, job)),
        f"export WORLD_SIZE={len(plan.order) * job.nproc}",
    ]
    if any(own(plan, host, job) for host in plan.order):
        lines.append('case "$(hostname)" in')
        for host in plan.order:
            lines.append(f"  {shlex.quote(host)}) {'; '.join(_exports(own(plan, host, job)))} ;;")
        lines.append("esac")
    return "\n".join(lines) + "\n"


def _prefix(plan: Plan, host: str, job: Job) -> str:
    """`env NAME=value …`, without what torchrun's arguments say."""
    values = {name: value for name, value in settings(plan, host, job).items() if not name.startswith("MASTER_")}
    return "env " + " ".join(f"{name}={shlex.quote(value)}" for name, value in values.items())


def torchrun(plan: Plan, job: Job) -> str:
    lines = []
    for rank, host in enumerate(plan.order):
        words = [
            "torchrun", f"--nnodes={len(plan.order)}", f"--nproc-per-node={job.nproc}", f"--node-rank={rank}",
            f"--master-addr={plan.address}", f"--master-port={plan.port}", job.script,
        ]  # fmt: skip
        lines += [f"# on {host}", f"{_prefix(plan, host, job)} {shlex.join(words)}"]
    return "\n".join(lines) + "\n"


def srun(plan: Plan, job: Job) -> str:
    head = [f"# in a job with --nodelist={','.join(plan.order)}", *_exports(shared(plan, job))]
    differing = [host for host in plan.order if own(plan, host, job)]
    setting = ""
    if differing:
        cases = " ".join(f"{shlex.quote(host)}) {'; '.join(_exports(own(plan, host, job)))};;" for host in differing)
        setting = f'case "$(hostname)" in {cases} esac; '
    inner = (
        f"{setting}exec torchrun --nnodes={len(plan.order)} --nproc-per-node={job.nproc} --node-rank=$SLURM_NODEID"
        f" --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT {shlex.quote(job.script)}"
    )
    where = f"-N{len(plan.order)} --ntasks-per-node=1 --distribution=arbitrary --nodelist={','.join(plan.order)}"
    line = f"srun {where} bash -c {shlex.quote(inner)}"
    return "\n".join([*head, line]) + "\n"


def mpirun(plan: Plan, job: Job) -> str:
    hosts = ",".join(f"{host}:{job.nproc}" for host in plan.order)
    passed = " ".join(f"-x {name}={shlex.quote(value)}" for name, value in shared(plan, job).items())
    networks = sorted({one.network for one in plan.endpoints["gloo"].values()})
    lines = [f"mpirun -np {len(plan.order) * job.nproc} --host {hosts} --mca btl_tcp_if_include {','.join(networks)}"
             f" --mca oob_tcp_if_include {','.join(networks)} {passed} python {shlex.quote(job.script)}"]  # fmt: skip
    for host in plan.order:
        if values := own(plan, host, job):
            lines.insert(0, f"# set on {host} itself: {' '.join(f'{name}={value}' for name, value in values.items())}")
    return "\n".join(lines) + "\n"


def hostfile(plan: Plan, job: Job) -> str:
    """DeepSpeed's, and beside it what goes into .deepspeed_env and onto the command line."""
    lines = [f"{host} slots={job.nproc}" for host in plan.order]
    lines += [
        "# .deepspeed_env:",
        *(f"#   {name}={value}" for name, value in shared(plan, job).items() if not name.startswith("MASTER_")),
    ]
    lines += [
        f"# set on {host} itself: {json.dumps(own(plan, host, job))}" for host in plan.order if own(plan, host, job)
    ]
    lines.append(f"# deepspeed --hostfile FILE --master_addr {plan.address} --master_port {plan.port} {job.script}")
    lines.append("# without ssh, on each host: the same with --no_ssh --node_rank R, R as the hosts stand here")
    return "\n".join(lines) + "\n"


def accelerate(plan: Plan, job: Job) -> str:
    """One configuration for all; `machine_rank` is given on each host's command line."""
    lines = [
        "compute_environment: LOCAL_MACHINE", "distributed_type: MULTI_CPU", "machine_rank: 0",
        f"main_process_ip: {json.dumps(plan.address)}", f"main_process_port: {plan.port}",
        "main_training_function: main", "mixed_precision: 'no'",
        f"num_machines: {len(plan.order)}", f"num_processes: {len(plan.order) * job.nproc}",
        "rdzv_backend: static", "same_network: true", "use_cpu: true",
    ]  # fmt: skip
    if any(node.value("gpus") for node in (job.nodes or {}).values()):
        lines[1], lines[-1] = "distributed_type: MULTI_GPU", "use_cpu: false"
    lines.append("# accelerate launch --config_file FILE --machine_rank R " + job.script + ", after:")
    cpu = lines[-2] == "use_cpu: true"  # without GPUs accelerate starts one process and leaves its number to us
    for rank, host in enumerate(plan.order):
        values = {name: value for name, value in settings(plan, host, job).items() if not name.startswith("MASTER_")}
        values |= {"RANK": str(rank), "WORLD_SIZE": str(len(plan.order))} if cpu and job.nproc == 1 else {}
        lines.append(f"#   {host} (rank {rank}): " + " ".join(f"{name}={value}" for name, value in values.items()))
    return "\n".join(lines) + "\n"


def kubernetes(plan: Plan, job: Job) -> str:
    """The container's part of a pod template."""
    lines = ["env:"]
    for name, value in shared(plan, job).items():
        lines += [f"  - name: {name}", f"    value: {json.dumps(value)}"]
    lines += ["ports:", f"  - containerPort: {plan.port}", "    name: master"]
    lines += [f"# on {host}: {json.dumps(own(plan, host, job))}" for host in plan.order if own(plan, host, job)]
    return "\n".join(lines) + "\n"


def document(plan: Plan, job: Job) -> dict[str, Any]:
    return {
        "paramedic_plan": VERSION,
        "master": {"host": plan.master, "address": plan.address, "port": plan.port},
        "family": plan.endpoints["gloo"][plan.master].family,
        "order": list(plan.order),
        "join_timeout_seconds": job.timeout(),
        "hosts": {
            host: {"env": settings(plan, host, job), **{plane: _end(on[host]) for plane, on in plan.endpoints.items()}}
            for host in plan.order
        },
    }


def _end(one: Endpoint) -> dict[str, str]:
    return {"interface": one.interface, "address": one.address}


def slowest(plan: Plan) -> Endpoint:
    return min((one for chosen in plan.endpoints.values() for one in chosen.values()), key=lambda one: one.speed)


FORMATS: dict[str, Callable[[Plan, Job], str]] = {
    "env": environment, "torchrun": torchrun, "srun": srun, "mpirun": mpirun, "hostfile": hostfile,
    "accelerate": accelerate, "kubernetes": kubernetes,
}  # fmt: skip
