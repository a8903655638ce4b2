#!/bin/bash
# node.sh: what a person types on one machine today, without EdgeLink. Run it on the machine itself.
#
#   node.sh relay                           on the machine with the public address
#   node.sh overlay HOSTNAME OVERLAY_IP     on every other one; IPs are unique because somebody wrote them down
#   node.sh head OVERLAY_IP                 in the cloud
#   node.sh edge OVERLAY_IP RANK HEAD_IP    on edge number RANK
#   node.sh stop                            everywhere afterwards: edges first, the relay last
#
# The commands are those of RLinf's guide for several machines. Its output and pids go to $BY_HAND_DIR (default
# /var/lib/edgelink/by-hand, private to a lab node). OBJECT_STORE_BYTES and RAY_EXTRA_FLAGS only make several Rays
# fit on one machine; EASYTIER_EXTRA_FLAGS go to easytier-core.
set -eu

directory=${BY_HAND_DIR:-/var/lib/edgelink/by-hand}
relay_address=${RELAY_ADDRESS:-203.0.113.10}
network="--network-name rlinf-cloud-edge --network-secret ${BY_HAND_SECRET:-only-used-in-the-lab}"
export RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0
mkdir -p "$directory"

overlay_up() { # arguments of easytier-core
  # shellcheck disable=SC2086 # flags are words
  # In the directory where it may leave its easytier-panic.log.
  (cd "$directory" && exec setsid easytier-core "$@" ${EASYTIER_EXTRA_FLAGS:-}) >>"$directory/easytier.log" 2>&1 </dev/null &
  echo $! >"$directory/easytier.pid"
  for _ in $(seq 300); do
    if ip -4 address show dev et0 2>/dev/null | grep -q inet; then return; fi
    sleep 0.1
  done
  echo "et0 did not appear within 30 s, see $directory/easytier.log" >&2
  exit 1
}

reach() { # IP: people ping until it answers
  for _ in $(seq 300); do
    if ping -c 1 -W 1 -I et0 "$1" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  echo "$1 does not answer over et0" >&2
  exit 1
}

# `ray stop` ends every Ray it sees, and a lab's nodes share one /proc: so end those of this network namespace.
ray_pids() {
  local here process
  here=$(readlink /proc/self/ns/net)
  for process in /proc/[0-9]*; do
    [ "$(readlink "$process/ns/net" 2>/dev/null)" = "$here" ] || continue
    if tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -qE '/ray/|ray::|-m ray\.'; then echo "${process#/proc/}"; fi
  done
}

stop_ray() {
  local signal
  for signal in TERM TERM TERM KILL KILL; do
    # shellcheck disable=SC2046 # one word a pid
    kill -s $signal $(ray_pids) 2>/dev/null || return 0
    sleep 1
  done
}

# On a very busy machine raylet gives up on its own agents (seen with a load of 15 on 2 cores): people type it again.
ray_up() { # rank, then arguments of ray start
  local try
  export RLINF_NODE_RANK=$1 RLINF_COMM_NET_DEVICES=et0
  shift
  for try in 1 2 3 4 5; do
    # shellcheck disable=SC2086 # flags are words
    if ray start "$@" ${OBJECT_STORE_BYTES:+--object-store-memory=$OBJECT_STORE_BYTES} ${RAY_EXTRA_FLAGS:-} \
      >>"$directory/ray.log" 2>&1 </dev/null; then return; fi
    echo "ray start failed, try $try" >&2
    stop_ray
  done
  tail -n 5 "$directory/ray.log" >&2
  exit 1
}

command=${1:-help}
shift || true
# shellcheck disable=SC2046,SC2086
case $command in
  relay)
    overlay_up --hostname easytier-bootstrap $network --private-mode true --ipv4 10.10.0.1 --dev-name et0 -l 11010
    ;;
  overlay)
    overlay_up --hostname "$1" $network --private-mode true --ipv4 "$2" --dev-name et0 -p "tcp://$relay_address:11010"
    ;;
  head)
    ray_up 0 --head --port=6379 --node-ip-address="$1"
    ;;
  edge)
    reach "$3"
    ray_up "$2" --address="$3:6379" --node-ip-address="$1"
    ;;
  stop)
    stop_ray
    if [ -f "$directory/easytier.pid" ]; then
      kill "$(cat "$directory/easytier.pid")" 2>/dev/null || true
      timeout 5 tail --pid="$(cat "$directory/easytier.pid")" -s 0.1 -f /dev/null || true
    fi
    ;;
  *)
    sed -n '2,12s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
