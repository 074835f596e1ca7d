# Control groups for launch scripts, of version 1 or 2: limit memory|cpu|pids NAME VALUE makes one below the root,
# $group; a process goes in with echo PID >$group/cgroup.procs; no_limits removes all of this script.
# cpu takes hundredths of a core.
limited=()

limit() {
  local root=/sys/fs/cgroup file value=$3
  if [ -d $root/$1 ]; then
    root=$root/$1
    case $1 in memory) file=memory.limit_in_bytes ;; cpu) file=cpu.cfs_quota_us value=$(($3 * 1000)) ;; pids) file=pids.max ;; esac
  else
    echo "+$1" >$root/cgroup.subtree_control
    case $1 in memory) file=memory.max ;; cpu) file=cpu.max value="$(($3 * 1000)) 100000" ;; pids) file=pids.max ;; esac
  fi
  group=$root/$2-$RANDOM
  mkdir -p "$group"
  echo "$value" >"$group/$file"
  limited+=("$group")
}

no_limits() {
  for group in "${limited[@]}"; do
    echo $$ >"${group%/*}/cgroup.procs" # this script itself goes on
    while read -r pid; do kill -KILL "$pid" 2>/dev/null; done <"$group/cgroup.procs"
    for _ in 1 2 3 4 5 6 7 8 9 10; do rmdir "$group" 2>/dev/null && break || sleep 0.2; done
  done
}
