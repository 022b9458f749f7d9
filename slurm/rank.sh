#!/usr/bin/env bash
# Starts one rank, in a container or not: bash rank.sh SPEC PYTHON PORT SETUP LOCAL [PATH]...
#
#   SPEC    the trial's specification: the rank's number comes from Slurm. Where it is `-MODULE`, no rank is started
#           but that module, which answers the questions on its stdin
#   PYTHON  the interpreter that has the training framework
#   PORT    of the rendezvous on the step's first node
#   SETUP   a file of shell lines to run first, or an empty word
#   LOCAL   a node-local folder for what kernels cache
#   PATH    folders that come first on the ranks' Python path, the first one first
#
# What a rank must find is set here, inside the command, since an image's own variables may beat inherited ones.
set -e
spec=$1 python=$2 port=$3 setup=$4 local=$5
shift 5

ulimit -c 0
export MASTER_PORT="$port" PYTHONUNBUFFERED=1
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR
for name in TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR TORCH_EXTENSIONS_DIR CUDA_CACHE_PATH; do
    [ -n "${!name-}" ] || export "$name=$local/cache-$UID/$name"
done

if [ -n "$setup" ]; then
    trap 'echo "rank.sh: error: a setup line failed: $BASH_COMMAND" >&2' ERR
    . "$setup"
    trap - ERR
fi

path=
for entry in "$@"; do path=$path${path:+:}$entry; done
export PYTHONPATH=$path${PYTHONPATH:+:$PYTHONPATH}
case $spec in -*) exec "$python" -W ignore -m "${spec#-}" ;; esac
exec "$python" -m orchestrator.trial "$spec"
