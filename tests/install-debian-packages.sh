#!/usr/bin/env bash
# Installs what the tests of Slurm, PostgreSQL and the report need, without letting any of it start a service.
set -euo pipefail
cd "$(dirname "$0")"
policy=/usr/sbin/policy-rc.d
made=
[ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' > "$policy"; chmod +x "$policy"; made=1; }
trap '[ -z "$made" ] || rm -f "$policy"' EXIT
mapfile -t packages < debian-packages.txt
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}"
