#!/bin/bash
# A true Slurm of virtual nodes on this machine's loopback, for tests: no systemd, and as root or as any user.
#
#   apt-get install -y --no-install-recommends slurm-wlm munge      # Debian 12: Slurm 22.05
#   tests/support/slurm_loopback.sh start <folder> [nodes]          # two nodes n1, n2 of four CPUs each, whatever is there
#   source <folder>/env.sh                                          # for sbatch, squeue, scontrol, scancel
#   tests/support/slurm_loopback.sh stop <folder>                   # ends what start has started
#
# Partitions: low (the default; preempted without grace), grace (preempted with 60 s of grace), cancel (preempted for good),
# high (preempts them all).
# No hosts file has the nodes' names, so jobs of several ranks need MASTER_ADDR=127.0.0.1.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin

fail() { echo "slurm_loopback: $*" >&2; exit 1; }
runs() { [ -s "$1" ] && kill -0 "$(cat "$1")" 2>/dev/null; }
port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
await() { for _ in $(seq 150); do "$@" >/dev/null 2>&1 && return; sleep 0.2; done; fail "not within 30 s: $*"; }
answers() { scontrol ping | grep -q UP; }
idle() { [ "$(sinfo --noheader --partition=low --states=idle --format=%D)" = "$1" ]; }

start() {
    local nodes=$1 n described=""
    for program in munged slurmctld slurmd sbatch; do command -v "$program" >/dev/null || fail "$program is not installed"; done
    runs "$folder/run/slurmctld.pid" && fail "$folder has a Slurm at work already"
    mkdir -p "$folder"/{munge,run,state,log}
    chmod 755 "$folder"; chmod 711 "$folder/munge"; chmod 700 "$folder/state"

    [ -s "$folder/munge/key" ] || (umask 077; head -c 128 /dev/urandom > "$folder/munge/key")
    munged --num-threads=2 --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/run/munged.pid" \
        --log-file="$folder/log/munged.log" --seed-file="$folder/munge/seed"
    await test -S "$folder/munge/socket"

    for n in $(seq "$nodes"); do
        mkdir -p "$folder/spool/n$n"
        described+="NodeName=n$n NodeHostname=n$n NodeAddr=127.0.0.1 Port=$(port) CPUs=4 State=UNKNOWN"$'\n'
    done
    # cred_expire: a job that is queued again waits for the life of its credential, 121 s by default
    # MinJobAge: how long ended jobs are shown
    cat > "$folder/slurm.conf" <<CONF
ClusterName=loopback
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$(port)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd.%n.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.%n.log
AccountingStorageType=accounting_storage/none
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5,sched_min_interval=100000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=20
MinJobAge=3600
InactiveLimit=0
$described
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 MaxTime=INFINITE State=UP
PartitionName=grace Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 MaxTime=INFINITE State=UP
PartitionName=cancel Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=0 MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
CONF
    mkdir -p "$folder/bin"
    cat > "$folder/bin/sacct" <<'SACCT'
#!/usr/bin/env python3
# What submitit asks of Slurm's accounting, which needs a database: sacct -o JobID,State,NodeList --parsable2 -j <job> ...
import re, subprocess, sys
print("JobID|State|NodeList")
for option, job in zip(sys.argv, sys.argv[1:]):
    command = ["scontrol", "--oneliner", "show", "job", job]
    for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines() if option == "-j" else []:
        field = dict(re.findall(r"(\w+)=(\S+)", line))
        number = f"{field['ArrayJobId']}_{field['ArrayTaskId']}" if "ArrayJobId" in field else field["JobId"]
        print(f"{number}|{field['JobState']}|")
SACCT
    chmod +x "$folder/bin/sacct"
    export SLURM_CONF=$folder/slurm.conf
    printf 'export SLURM_CONF=%q PATH=%q:$PATH\n' "$SLURM_CONF" "$folder/bin" > "$folder/env.sh"
    slurmctld -c
    await answers
    for n in $(seq "$nodes"); do slurmd -N "n$n"; done
    await idle "$nodes"
}

stop() {
    export SLURM_CONF=$folder/slurm.conf
    local file pid
    if runs "$folder/run/slurmctld.pid"; then
        timeout 10 scancel --user="$(id -un)" || true
        timeout 10 scancel --user="$(id -un)" --signal=KILL --full || true
        sleep 1
    fi
    for file in "$folder"/run/slurmd.*.pid "$folder/run/slurmctld.pid" "$folder/run/munged.pid"; do
        runs "$file" || continue
        pid=$(cat "$file")
        kill "$pid"
        for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.2; done
        kill -0 "$pid" 2>/dev/null && kill -9 "$pid"
    done
    return 0
}

[ $# -ge 2 ] || fail "usage: $0 start|stop <folder> [nodes]"
folder=$(mkdir -p "$2" && cd "$2" && pwd)
case $1 in
    start) start "${3:-2}" ;;
    stop) stop ;;
    *) fail "start or stop, not $1" ;;
esac
