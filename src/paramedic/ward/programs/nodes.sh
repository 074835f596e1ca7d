# Nodes on one machine, for launch scripts: network, host name and mounts of their own, joined by virtual cables:
# data0 (10.20.0.N, the training network) and eth0 (10.10.0.N, the management network).
#   . ./nodes.sh; open_nodes 2; node 1 COMMAND… & node 2 COMMAND… & wait_all 5 PIDS…
declare -A holder

open_nodes() { # how many; all on two bridges in a namespace of their own (the switch)
  hold 0
  for net in data0 eth0; do on 0 ip link add "$net" type bridge; on 0 ip link set "$net" up; done
  for number in $(seq "$1"); do
    hold "$number"
    for net in data0:20 eth0:10; do
      ip link add "${net%:*}" netns "${holder[$number]}" type veth peer name "${net%:*}-$number" netns "${holder[0]}"
      on "$number" ip addr add "10.${net#*:}.0.$number/24" dev "${net%:*}"
      on "$number" ip link set "${net%:*}" up
      on 0 ip link set "${net%:*}-$number" master "${net%:*}" up
    done
    on "$number" hostname "node-0$number"
    printf '127.0.0.1 localhost\n10.20.0.1 node-01\n10.20.0.2 node-02\n10.10.0.1 node-01-mgmt\n10.10.0.2 node-02-mgmt\n' >"hosts-$number"
    on "$number" mount --bind "$PWD/hosts-$number" /etc/hosts
  done
}

hold() {
  unshare --net --uts --mount setpriv --pdeathsig KILL sleep infinity </dev/null >/dev/null 2>&1 &
  holder[$1]=$!
  until grep -qz '^sleep$' "/proc/${holder[$1]}/cmdline"; do sleep 0.05; done
  on "$1" ip link set lo up
}

on() { # a command in the namespaces of node N
  local number=$1
  shift
  nsenter --target "${holder[$number]}" --net --uts --mount -- sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

node() { # the same, its output kept as that node's log; in the background ($!) it is the command's own process
  local replace= number=$1
  [ "$BASHPID" = "$$" ] || replace=exec
  shift
  $replace nsenter --target "${holder[$number]}" --net --uts --mount -- sh -c 'cd "$0" && exec "$@"' "$PWD" "$@" >>"logs/node-0$number.log" 2>&1
}

close_nodes() {
  kill "${holder[@]}" 2>/dev/null
}

wait_all() { # grace, process ids; as schedulers do: when one fails, the others are ended after the grace time
  local grace=$1 code=0 done_one
  shift
  declare -A left
  for pid in "$@"; do left[$pid]=1; done
  while [ ${#left[@]} -gt 0 ] && [ "$code" = 0 ]; do
    wait -n -p done_one "${!left[@]}"
    code=$?
    unset "left[$done_one]"
  done
  if [ "$code" != 0 ] && [ ${#left[@]} -gt 0 ]; then
    for _ in $(seq $((grace * 5))); do
      kill -0 "${!left[@]}" 2>/dev/null || break
      sleep 0.2
    done
    kill -TERM "${!left[@]}" 2>/dev/null
    sleep 1
    kill -KILL "${!left[@]}" 2>/dev/null
    wait "${!left[@]}" 2>/dev/null
  fi
  return "$code"
}

wait_for() { # pattern, file: until the line is there
  until grep -qE "$1" "$2" 2>/dev/null; do sleep 0.1; done
}
