# A Slurm cluster of two nodes on one machine, for launch scripts; in a network of its own, so that no port is taken.
#   . ./slurm.sh; sbatch …; follow JOB
if [ -z "$IN_CLUSTER" ]; then
  IN_CLUSTER=1 exec unshare --net bash "$0" "$@"
fi
ip link set lo up
ip address add 10.20.0.1/24 dev lo # Slurm does not resolve names on a host that has a loopback address only
cluster=$PWD/.cluster
export SLURM_CONF=$cluster/slurm.conf
mkdir -p "$cluster/state" "$cluster/node-01" "$cluster/node-02"
chmod 755 "$cluster"
printf '127.0.0.1 localhost\n10.20.0.1 node-01 node-02\n' >"$cluster/hosts"
mount --bind "$cluster/hosts" /etc/hosts
dd if=/dev/urandom of="$cluster/munge.key" bs=64 count=1 status=none
chmod 600 "$cluster/munge.key"
cat >"$SLURM_CONF" <<END
ClusterName=lab
SlurmctldHost=node-01
SlurmctldPort=6817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$cluster/munge.socket
StateSaveLocation=$cluster/state
SlurmdSpoolDir=$cluster/%n
SlurmctldPidFile=$cluster/slurmctld.pid
SlurmdPidFile=$cluster/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
KillWait=5
InactiveLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,bf_interval=2
JobRequeue=0
EnforcePartLimits=ALL
NodeName=node-01 NodeAddr=10.20.0.1 NodeHostname=node-01 Port=17001 CPUs=2 RealMemory=4000
NodeName=node-02 NodeAddr=10.20.0.1 NodeHostname=node-01 Port=17002 CPUs=2 RealMemory=4000
PartitionName=train Nodes=ALL Default=YES PriorityTier=1 MaxTime=60
PartitionName=urgent Nodes=ALL PriorityTier=10 MaxTime=60
$SLURM_EXTRA
END
munged --force --key-file="$cluster/munge.key" --socket="$cluster/munge.socket" --pid-file="$cluster/munged.pid" \
  --log-file="$cluster/munged.log" --seed-file="$cluster/munged.seed" >/dev/null 2>&1
slurmctld -D >"$cluster/slurmctld.log" 2>&1 &
for name in node-01 node-02; do slurmd -D -N $name >"$cluster/slurmd-$name.log" 2>&1 & done
for _ in $(seq 200); do
  [ "$(sinfo --noheader --nodes node-01,node-02 --states idle --format %D 2>/dev/null | head -n 1)" = 2 ] && break
  sleep 0.3
done

state() { # of a job
  scontrol show job "$1" 2>/dev/null | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'
}

follow() { # a job until it has ended; 0 when it completed
  while :; do
    case $(state "$1") in
      COMPLETED) return 0 ;;
      PENDING | RUNNING | COMPLETING | CONFIGURING | SUSPENDED | REQUEUED) sleep 0.5 ;;
      *) return 1 ;;
    esac
  done
}
