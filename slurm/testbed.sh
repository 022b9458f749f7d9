#!/usr/bin/env bash
# A real multi-node Slurm on one Debian 12 machine, for integration tests.
#
#   testbed.sh start  [STATE_DIR [NODES [GPUS_PER_NODE]]]
#   testbed.sh stop   [STATE_DIR]      stop every daemon and job, by pid (state is kept)
#   testbed.sh purge  [STATE_DIR]      stop, then delete STATE_DIR
#   testbed.sh status [STATE_DIR]      exit 0 only if all is up
#   testbed.sh env    [STATE_DIR]      print 'export SLURM_CONF=...': eval it
#   testbed.sh kill-node  STATE_DIR K  kill -9 slurmd of node K and mark the node DOWN
#   testbed.sh start-node STATE_DIR K  bring node K back
#   testbed.sh expire STATE_DIR JOBID [SECONDS]  let the job's time limit end SECONDS (1) from now: TIMEOUT
#                              follows at slurmctld's next 30 s check
#   testbed.sh nudge STATE_DIR [JOBID]  start requeued jobs now (Slurm holds them back for 120 s)
#
# Needs root. No systemd, no cgroups, nothing but loopback. Idempotent.
# Environment: SLURMBED_ACCOUNTING=slurmdbd|none (default slurmdbd: MariaDB + slurmdbd, so sacct works)
#              SLURMBED_PORT=16800  first port   SLURMBED_CPUS=64  SLURMBED_MEM_MB=524288 (per node, oversubscribed)
#              SLURMBED_UTS=auto|no  give each node a hostname of its own (needs unshare --uts)
#              SLURMBED_INSTALL=yes|no
#              SLURMBED_KILLWAIT=30  seconds from SIGTERM to SIGKILL (30 is Slurm's default)
#              SLURMBED_CGROUP=no|v1|v2  task/cgroup with ConstrainRAMSpace: only this makes OUT_OF_MEMORY states
#              SLURMBED_PYXIS=no|fake|PATH.so  a SPANK plugin: 'fake' compiles one that takes pyxis' --container-*
#                options, shows them to the tasks as FAKE_PYXIS_*, and fails to import an image whose name has
#                `no-such-image` in it (wants gcc and libslurm-dev)
set -euo pipefail

cmd=${1:-status}
S=$(realpath -m "${2:-/tmp/slurm-testbed}")
ACCT=${SLURMBED_ACCOUNTING:-slurmdbd}
PORT=${SLURMBED_PORT:-16800}
CPUS=${SLURMBED_CPUS:-64}
MEM=${SLURMBED_MEM_MB:-524288}
CGROUP=${SLURMBED_CGROUP:-no}
KILLWAIT=${SLURMBED_KILLWAIT:-30}
MARK="# slurm-testbed $S"
export SLURM_CONF=$S/slurm.conf
export LC_ALL=C

say() { printf 'testbed: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# --- processes, by pid only ------------------------------------------------------------------------------------
alive() { # PID: there, and no zombie (an init that reaps lazily leaves those for seconds)
    local st
    st=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
    case ${st##*) } in Z* | X*) return 1 ;; esac
}
pid_of() { # pid_of FILE NAME: the pid in FILE if it is alive and runs NAME
    local p comm
    p=$(cat "$1" 2>/dev/null | tr -dc 0-9) || return 1
    [ -n "$p" ] && alive "$p" && comm=$(cat "/proc/$p/comm" 2>/dev/null) || return 1
    case $comm in "$2"*) echo "$p" ;; *) return 1 ;; esac
}
stop_pids() { # SIGNAL SECONDS [FILE NAME]...: signal all, wait for all, then kill what is left
    local sig=$1 n=$(($2 * 50)) files=() pids=() left p i
    shift 2
    while [ $# -gt 0 ]; do
        files+=("$1")
        if p=$(pid_of "$1" "$2"); then pids+=("$p"); kill -"$sig" "$p" 2>/dev/null || true; fi
        shift 2
    done
    for ((i = 0; i < n && ${#pids[@]} > 0; i++)); do
        left=(); for p in "${pids[@]}"; do if alive "$p"; then left+=("$p"); fi; done
        pids=(${left[@]+"${left[@]}"}); [ ${#pids[@]} = 0 ] || sleep 0.02
    done
    for p in ${pids[@]+"${pids[@]}"}; do kill -KILL "$p" 2>/dev/null || true; done
    [ ${#files[@]} = 0 ] || rm -f "${files[@]}"
}
own_pids() { # what jobs and steps left: every process that carries this state directory's SLURM_CONF
    local d p
    for d in /proc/[0-9]*; do
        p=${d#/proc/}
        [ "$p" = $$ ] || [ "$p" = "$PPID" ] || [ "$p" = "$BASHPID" ] && continue
        # a job's own processes (they also have SLURM_JOB_ID), or a step daemon of one of our slurmds
        if tr '\0' '\n' < "$d/environ" 2>/dev/null | grep -qxF "SLURM_CONF=$SLURM_CONF"; then
            case $(cat "$d/comm" 2>/dev/null) in
                slurmstepd*) echo "$p" ;;
                *) if tr '\0' '\n' < "$d/environ" 2>/dev/null | grep -q '^SLURM_JOB_ID='; then echo "$p"; fi ;;
            esac
        fi
    done 2>/dev/null
}
wait_for() { # SECONDS COMMAND...
    local t=$(($1 * 20)) i
    shift
    for ((i = 0; i < t; i++)); do "$@" > /dev/null 2>&1 && return 0; sleep 0.05; done
    return 1
}

# --- packages --------------------------------------------------------------------------------------------------
install_packages() {
    local need=() p
    local want=(munge slurmctld slurmd slurm-client)
    [ "$ACCT" = slurmdbd ] && want+=(slurmdbd mariadb-server)
    [ "${SLURMBED_PYXIS:-no}" = fake ] && want+=(libslurm-dev gcc libc6-dev)
    for p in "${want[@]}"; do
        dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q '^install ok installed' || need+=("$p")
    done
    [ ${#need[@]} = 0 ] && return 0
    [ "${SLURMBED_INSTALL:-yes}" = yes ] || die "missing packages: ${need[*]}"
    say "installing ${need[*]}"
    # No daemon may start at installation: nothing here runs under an init system.
    local policy=/usr/sbin/policy-rc.d made=
    if [ ! -e $policy ]; then printf '#!/bin/sh\nexit 101\n' > $policy; chmod +x $policy; made=1; fi
    local log; log=$(mktemp)
    if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            -o Dpkg::Options::=--force-unsafe-io "${need[@]}"; } > "$log" 2>&1; then
        tail -20 "$log" >&2; die "apt-get failed"
    fi
    rm -f "$log"
    if [ -n "$made" ]; then rm -f $policy; fi
}

# --- configuration ---------------------------------------------------------------------------------------------
write_config() {
    local i host; host=$(hostname)
    mkdir -p "$S"/{munge,spool,ctld,log,dev,run}
    chmod 755 "$S"; chmod 700 "$S/munge"
    if [ ! -s "$S/munge/munge.key" ]; then
        (umask 077; head -c 1024 /dev/urandom > "$S/munge/munge.key"); chmod 400 "$S/munge/munge.key"
    fi
    # gres.conf wants character devices: a link to /dev/null is one, and needs no mknod right.
    for ((i = 0; i < GPUS; i++)); do ln -sfn /dev/null "$S/dev/nvidia$i"; done
    printf '%s\n' "$NODES" > "$S/run/nodes"; printf '%s\n' "$ACCT" > "$S/run/accounting"; printf '%s\n' "$PORT" > "$S/run/port"

    # A new state starts its job ids elsewhere: submitit names result files by job id, so with the ids 1, 2, 3 again
    # it would take a former run's result for this one's.
    [ -s "$S/run/first_job" ] || echo $(($(date +%s) % 3000000 * 20 + 1)) > "$S/run/first_job"

    # Bind to loopback only where the host's own name leads there (these options bind to that name's address).
    local bind=
    case $(getent ahostsv4 "$host" | awk 'NR==1{print $1}') in 127.*) bind=NoInAddrAny ;; esac

    local acct
    if [ "$ACCT" = slurmdbd ]; then
        acct="AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$((PORT + 19))
# for slurmdbd this is the munge socket, and AuthInfo does not stand in for it
AccountingStoragePass=$S/munge/munge.sock
AccountingStorageTRES=gres/gpu"
    else
        acct="AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$S/log/jobcomp.txt"
    fi
    cat > "$S/slurm.conf" << EOF
ClusterName=testbed
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$((PORT + 17))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$S/munge/munge.sock
CryptoType=crypto/munge
${bind:+CommunicationParameters=NoCtldInAddrAny,$bind}
StateSaveLocation=$S/ctld
SlurmdSpoolDir=$S/spool/%n
SlurmctldPidFile=$S/run/slurmctld.pid
SlurmdPidFile=$S/run/slurmd-%n.pid
SlurmctldLogFile=$S/log/slurmctld.log
SlurmdLogFile=$S/log/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
# no cgroups, no systemd
ProctrackType=proctrack/linuxproc
TaskPlugin=$([ "$CGROUP" = no ] && echo task/none || echo task/cgroup)
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
$([ "$CGROUP" = no ] && echo JobAcctGatherParams=OverMemoryKill || true)
SwitchType=switch/none
MpiDefault=none
# nodes that claim more than the machine has
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ReturnToService=2
# quick and impatient: this is a test bed
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1
KillWait=$KILLWAIT
OverTimeLimit=0
MessageTimeout=20
CompleteWait=0
SlurmctldTimeout=10
SlurmdTimeout=10
TCPTimeout=2
UnkillableStepTimeout=30
MinJobAge=300
FirstJobId=$(cat "$S/run/first_job")
MaxArraySize=10001
MaxJobCount=20000
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
$acct
NodeName=node[1-$NODES] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((PORT + 101))-$((PORT + 100 + NODES))] CPUs=$CPUS Boards=1 SocketsPerBoard=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=$MEM Gres=gpu:$GPUS State=UNKNOWN
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 DefMemPerCPU=1024 PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=low Nodes=ALL Default=NO MaxTime=INFINITE DefaultTime=60 DefMemPerCPU=1024 PriorityTier=1 PreemptMode=REQUEUE GraceTime=3 State=UP
EOF
    [ "$NODES" -gt 1 ] || sed -i -E "s/node\[1-1\]/node1/; s/Port=\[([0-9]+)-\1\]/Port=\1/" "$S/slurm.conf"
    if [ "$GPUS" -gt 0 ]; then
        # without File= Slurm counts GPUs but sets no CUDA_VISIBLE_DEVICES
        printf 'AutoDetect=off\nNodeName=node[1-%s] Name=gpu File=%s/dev/nvidia[0-%s] Flags=nvidia_gpu_env\n' \
            "$NODES" "$S" "$((GPUS - 1))" > "$S/gres.conf"
    else
        sed -i -E 's/ Gres=gpu:0//' "$S/slurm.conf"; : > "$S/gres.conf"
    fi
    if [ "$CGROUP" = no ]; then
        echo 'CgroupPlugin=cgroup/v1' > "$S/cgroup.conf"
    else
        printf 'CgroupPlugin=cgroup/%s\nConstrainRAMSpace=yes\nAllowedRAMSpace=100\n' "$CGROUP" > "$S/cgroup.conf"
    fi
    case ${SLURMBED_PYXIS:-no} in
        no) rm -f "$S/plugstack.conf" ;;
        fake) make_fake_pyxis; echo "required $S/fake_pyxis.so" > "$S/plugstack.conf" ;;
        *) echo "required $SLURMBED_PYXIS" > "$S/plugstack.conf" ;;
    esac
    echo "export SLURM_CONF=$S/slurm.conf" > "$S/env.sh"
    (umask 077; cat > "$S/slurmdbd.conf" << EOF
AuthType=auth/munge
AuthInfo=socket=$S/munge/munge.sock
DbdHost=$host
DbdAddr=127.0.0.1
DbdPort=$((PORT + 19))
${bind:+CommunicationParameters=$bind}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((PORT + 20))
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
LogFile=$S/log/slurmdbd.log
PidFile=$S/run/slurmdbd.pid
EOF
    )
    # nodeK must be found by name: SLURM_JOB_NODELIST is what a launcher takes MASTER_ADDR from
    if ! grep -qxF "127.0.0.1 $(node_names) $MARK" /etc/hosts; then
        write_hosts "127.0.0.1 $(node_names) $MARK"
    fi
}
make_fake_pyxis() {
    [ "$S/fake_pyxis.so" -nt "$0" ] && return 0
    cat > "$S/fake_pyxis.c" << 'EOF'
#include <stdlib.h>
#include <string.h>
#include <slurm/spank.h>
SPANK_PLUGIN(pyxis, 1);
static const struct { const char *name, *arg, *env; } O[] = {
    {"container-image", "[USER@][REGISTRY#]IMAGE[:TAG]|PATH", "FAKE_PYXIS_IMAGE"},
    {"container-mounts", "SRC:DST[:FLAGS][,...]", "FAKE_PYXIS_MOUNTS"},
    {"container-workdir", "PATH", "FAKE_PYXIS_WORKDIR"},
    {"container-name", "NAME", "FAKE_PYXIS_NAME"},
    {"container-save", "PATH", "FAKE_PYXIS_SAVE"},
    {"container-env", "NAME[,NAME...]", "FAKE_PYXIS_ENV"},
    {"container-mount-home", NULL, "FAKE_PYXIS_MOUNT_HOME"},
    {"no-container-mount-home", NULL, "FAKE_PYXIS_NO_MOUNT_HOME"},
    {"container-remap-root", NULL, "FAKE_PYXIS_REMAP_ROOT"},
    {"no-container-remap-root", NULL, "FAKE_PYXIS_NO_REMAP_ROOT"},
    {"container-entrypoint", NULL, "FAKE_PYXIS_ENTRYPOINT"},
    {"no-container-entrypoint", NULL, "FAKE_PYXIS_NO_ENTRYPOINT"},
    {"container-writable", NULL, "FAKE_PYXIS_WRITABLE"},
    {"container-readonly", NULL, "FAKE_PYXIS_READONLY"}};
#define N (sizeof O / sizeof *O)
static char *V[N];
static int take(int i, const char *arg, int remote) { V[i] = strdup(arg && *arg ? arg : "1"); return 0; }
int slurm_spank_init(spank_t sp, int ac, char **av) {
    spank_context_t c = spank_context();
    if (c != S_CTX_LOCAL && c != S_CTX_REMOTE && c != S_CTX_ALLOCATOR) return 0;
    for (unsigned i = 0; i < N; i++) {
        struct spank_option o = {(char *)O[i].name, (char *)O[i].arg, (char *)"fake pyxis", O[i].arg ? 1 : 0, (int)i, take};
        if (spank_option_register(sp, &o)) return -1;
    }
    return 0;
}
int slurm_spank_user_init(spank_t sp, int ac, char **av) { /* where pyxis imports the image */
    if (spank_remote(sp) != 1 || !V[0] || !strstr(V[0], "no-such-image")) return 0;
    slurm_error("pyxis: child 4242 failed with error code: 1");
    slurm_error("pyxis: failed to import docker image");
    slurm_error("pyxis:     [ERROR] URL https://registry-1.docker.io/v2/%s returned error code: 404 Not Found", V[0]);
    return -1;
}
int slurm_spank_task_init(spank_t sp, int ac, char **av) {
    for (unsigned i = 0; i < N; i++)
        if (V[i]) spank_setenv(sp, O[i].env, V[i], 1);
    return 0;
}
EOF
    gcc -shared -fPIC -O1 -o "$S/fake_pyxis.so" "$S/fake_pyxis.c"
}
node_names() { local i o=; for ((i = 1; i <= NODES; i++)); do o+="${o:+ }node$i"; done; echo "$o"; }
write_hosts() { # LINE...: /etc/hosts without our lines, and with these. One test bed at a time: it is rewritten in
    # place, since in a container the file is a mount, and whoever read it half-written would write half of it back.
    (
        flock 9
        { grep -vF -- "$MARK" /etc/hosts || true; printf '%s\n' "$@" | sed '/^$/d'; } > "$S/run/hosts"
        cat "$S/run/hosts" > /etc/hosts
    ) 9> /var/lock/slurm-testbed.hosts
}

# --- daemons ---------------------------------------------------------------------------------------------------
start_munge() {
    pid_of "$S/munge/munged.pid" munged > /dev/null && return 0
    rm -f "$S"/munge/munge.sock*
    munged --force --key-file="$S/munge/munge.key" --socket="$S/munge/munge.sock" --pid-file="$S/munge/munged.pid" \
        --log-file="$S/munge/munged.log" --seed-file="$S/munge/munge.seed" --num-threads=4
    chmod 711 "$S/munge" # other users may reach the socket
}
db() { mariadb --no-defaults -S "$S/run/db.sock" -u root "$@"; }
start_db() {
    pid_of "$S/run/db.pid" mariadbd > /dev/null && return 0
    if [ ! -d "$S/db/mysql" ]; then
        rm -rf "$S/db"
        mariadb-install-db --no-defaults --user=root --datadir="$S/db" --auth-root-authentication-method=normal \
            --skip-test-db --innodb-log-file-size=8M > "$S/log/mariadb-install.log" 2>&1 || die "mariadb-install-db: see $S/log"
        touch "$S/run/db.new"
    fi
    setsid nohup mariadbd --no-defaults --user=root --datadir="$S/db" --socket="$S/run/db.sock" --pid-file="$S/run/db.pid" \
        --bind-address=127.0.0.1 --port=$((PORT + 20)) --skip-name-resolve --skip-log-bin --performance-schema=OFF \
        --innodb-buffer-pool-size=128M --innodb-log-file-size=64M --innodb-lock-wait-timeout=900 \
        --innodb-flush-log-at-trx-commit=0 --innodb-doublewrite=0 --innodb-flush-method=O_DIRECT_NO_FSYNC \
        < /dev/null >> "$S/log/mariadb.log" 2>&1 &
    wait_for 30 mariadb-admin --no-defaults -S "$S/run/db.sock" -u root ping || die "mariadbd: see $S/log/mariadb.log"
    if [ -e "$S/run/db.new" ]; then
        db -e "create database if not exists slurm_acct; create or replace user slurm@'127.0.0.1' identified by 'slurm';
               grant all on slurm_acct.* to slurm@'127.0.0.1';"
        rm -f "$S/run/db.new"
    fi
}
listening() { (exec 3<> "/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
start_slurmdbd() {
    pid_of "$S/run/slurmdbd.pid" slurmdbd > /dev/null && return 0
    slurmdbd 2>> "$S/log/slurmdbd.err" < /dev/null
    wait_for 30 listening $((PORT + 19)) || die "slurmdbd: see $S/log/slurmdbd.log"
}
start_slurmctld() {
    pid_of "$S/run/slurmctld.pid" slurmctld > /dev/null && return 0
    slurmctld -f "$SLURM_CONF" 2>> "$S/log/slurmctld.err" < /dev/null || die "slurmctld: see $S/log/slurmctld.err"
}
uts_ok() { [ "${SLURMBED_UTS:-auto}" != no ] && unshare --uts true 2>/dev/null; }
start_slurmd() { # K
    local n=node$1
    pid_of "$S/run/slurmd-$n.pid" slurmd > /dev/null && return 0
    mkdir -p "$S/spool/$n"
    if uts_ok; then
        unshare --uts sh -c 'hostname "$1" && exec slurmd -N "$1" -f "$2"' sh "$n" "$SLURM_CONF" 2>> "$S/log/slurmd.err" < /dev/null
    else
        slurmd -N "$n" -f "$SLURM_CONF" 2>> "$S/log/slurmd.err" < /dev/null
    fi
}
all_idle() { [ "$(sinfo -h -N -p gpu -o %t 2>/dev/null | grep -cE '^(idle|mix|alloc|comp)$')" = "$NODES" ]; }

node_ready() { sinfo -h -N -n "$1" -p gpu -o %t | grep -qE '^(idle|mix|alloc)$'; }
pending() { [ "$(squeue -h -j "$1" -o %t)" = PD ]; }
node_pids() { # SLURMD_PID NODE: the step daemons and tasks of one node
    local mine d
    mine=$(readlink "/proc/$1/ns/uts")
    if [ "$mine" != "$(readlink /proc/$$/ns/uts)" ]; then
        for d in /proc/[0-9]*; do [ "$(readlink "$d/ns/uts" 2>/dev/null)" != "$mine" ] || [ "$d" = "/proc/$1" ] || echo "${d#/proc/}"; done
    else
        for d in /proc/[0-9]*; do
            if tr '\0' '\n' < "$d/environ" 2>/dev/null | grep -qxF "SLURMD_NODENAME=$2"; then echo "${d#/proc/}"; fi
        done 2>/dev/null
    fi
}

# --- commands --------------------------------------------------------------------------------------------------
load() { NODES=$(cat "$S/run/nodes" 2>/dev/null || echo 0); ACCT=$(cat "$S/run/accounting" 2>/dev/null || echo "$ACCT"); PORT=$(cat "$S/run/port" 2>/dev/null || echo "$PORT"); }
need_root() { [ "$(id -u)" = 0 ] || die "needs root"; }

do_start() {
    local i
    need_root
    NODES=${1:-4} GPUS=${2:-8}
    if [ -e "$S/run/want" ] && [ "$(cat "$S/run/want")" != "$NODES $GPUS $ACCT $PORT $CPUS $MEM $CGROUP ${SLURMBED_PYXIS:-no}" ]; then
        (do_stop) # another shape than the one that is up: its configuration must not change under it
    fi
    install_packages
    write_config
    echo "$NODES $GPUS $ACCT $PORT $CPUS $MEM $CGROUP ${SLURMBED_PYXIS:-no}" > "$S/run/want"
    start_munge
    if [ "$ACCT" = slurmdbd ]; then start_db; start_slurmdbd; fi
    start_slurmctld
    for ((i = 1; i <= NODES; i++)); do start_slurmd "$i"; done
    wait_for 2 all_idle || for i in $(sinfo -h -N -t down,drain,fail -p gpu -o %N 2>/dev/null); do
        scontrol update nodename="$i" state=resume 2>/dev/null || true
    done
    wait_for 60 all_idle || { sinfo -N -l >&2 || true; die "nodes did not come up: see $S/log"; }
    say "up: $NODES nodes x $GPUS GPUs; eval \"\$($0 env $S)\""
}
do_stop() { # [KILL]: with KILL nothing is saved
    local f p sig=${1:-TERM} slurm=()
    need_root; load
    [ -d "$S/run" ] || return 0
    if [ "$sig" = TERM ] && pid_of "$S/run/slurmctld.pid" slurmctld > /dev/null; then
        timeout 5 scancel -u root 2>/dev/null || true
        timeout 6 bash -c 'while [ -n "$(squeue -h 2>/dev/null)" ]; do sleep 0.1; done' || true
    fi
    for f in "$S"/run/slurmd-*.pid; do [ ! -e "$f" ] || slurm+=("$f" slurmd); done
    stop_pids "$sig" 6 "$S/run/slurmctld.pid" slurmctld ${slurm[@]+"${slurm[@]}"}
    for p in $(own_pids); do kill -KILL "$p" 2>/dev/null || true; done
    stop_pids "$sig" 6 "$S/run/slurmdbd.pid" slurmdbd
    stop_pids "$sig" 15 "$S/run/db.pid" mariadbd "$S/munge/munged.pid" munged
    rm -f "$S/run/want"
    if grep -qF -- "$MARK" /etc/hosts; then write_hosts ""; fi
}
do_status() {
    local bad=0 n i f p
    load
    [ "$NODES" -gt 0 ] || { echo "not set up: $S"; return 1; }
    report() { if p=$(pid_of "$2" "$3"); then echo "$1 pid $p"; else echo "$1 DOWN"; bad=1; fi; }
    report munged "$S/munge/munged.pid" munged
    if [ "$ACCT" = slurmdbd ]; then report mariadbd "$S/run/db.pid" mariadbd; report slurmdbd "$S/run/slurmdbd.pid" slurmdbd; fi
    report slurmctld "$S/run/slurmctld.pid" slurmctld
    for ((i = 1; i <= NODES; i++)); do report "slurmd node$i" "$S/run/slurmd-node$i.pid" slurmd; done
    [ $bad = 0 ] && { sinfo -N -h -p gpu -o '%N %t %c %m %G' || bad=1; all_idle || bad=1; }
    return $bad
}

case $cmd in
    start) do_start "${3:-}" "${4:-}" ;;
    stop) do_stop ;;
    purge) do_stop KILL
        if grep -qsF task/cgroup "$S/slurm.conf"; then # what a cgroup run leaves behind
            for n in $(node_names); do find /sys/fs/cgroup -depth -type d -path "*/slurm_$n*" -exec rmdir {} + 2>/dev/null || true; done
        fi
        if [ -e "$S/slurm.conf" ]; then rm -rf -- "$S"; fi ;;
    status) do_status ;;
    env) echo "export SLURM_CONF=$S/slurm.conf" ;;
    kill-node) load; n=node$3; pids=
        if p=$(pid_of "$S/run/slurmd-$n.pid" slurmd); then pids=$(node_pids "$p" "$n"); kill -KILL "$p"; fi
        rm -f "$S/run/slurmd-$n.pid"
        scontrol update nodename="$n" state=down reason=testbed-kill # now, not after SlurmdTimeout
        for p in $pids; do kill -KILL "$p" 2>/dev/null || true; done ;;
    start-node) load; start_slurmd "$3"
        scontrol update nodename="node$3" state=resume 2>/dev/null || true; wait_for 20 node_ready "node$3" ;;
    nudge) if [ -n "${3:-}" ]; then # the one job, once it has left the nodes; any sooner than 2 s and
            # slurmd takes the new credential for the revoked one: 'Job credential revoked', FAILED
            wait_for 15 pending "$3"; scontrol update jobid="$3" StartTime=now+2seconds
        else
            for j in $(squeue -h -r -t PD -o '%i %r' | awk '$2=="BeginTime"{print $1}'); do scontrol update jobid="$j" StartTime=now+2seconds; done
        fi ;;
    expire) scontrol update jobid="$3" EndTime=now+"${4:-1}"seconds ;;
    *) sed -n '2,29p' "$0"; exit 2 ;;
esac
