"""Bash scripts for the machine that has Slurm.

Each is repeatable and may be interrupted anywhere.

The first argument is the directory of the launch. Facts are files created by a link, so that they are complete and
written once.
"""

from __future__ import annotations

from typing import Final

_FUNCTIONS: Final = r"""
umask 077
set -o pipefail
fact() { # NAME TEXT: write it once
  local draft=facts/.$1.$$.$RANDOM
  printf '%s' "$2" > "$draft" && { ln "$draft" "facts/$1" 2>/dev/null || [[ -e facts/$1 ]]; }
  local code=$?
  rm -f "$draft"
  return $code
}
turn() { # Lock, because another replica may run the same script
  exec 9> lock && flock -w 30 9 || { echo "another service holds the lock of this launch" >&2; exit 75; }
}
mine() { # KEY: its jobs, without jobs of the same name from other services
  squeue -h -a -u "$(id -un)" -n "$1" -t all -o '%A %k' | sed -n "s|^\\([0-9]*\\) holdfast:${PWD%/launches/*}\$|\\1|p"
}
"""

READ_STATE: Final = r"""
cd "$1/facts" 2>/dev/null || exit 0
export SLURM_TIME_FORMAT=%s
books() {
  printf 'order\t'; tr -d '\n' < ../order 2>/dev/null; echo
  for name in *; do
    [[ -e $name ]] || continue
    printf 'fact\t%s\t' "$name"; tr '\n' '\036' < "$name"; echo
  done
}
newest() { ls -d submitted.* 2>/dev/null | sort -V | tail -n 1; }
ask() { # The job in Slurm, and the relevant part of its state
  row=$(scontrol -o show job "$job" 2>&1)
  state="$? $(sed -n 's/.*\(JobState=[^ ]*\).*\( Restarts=[^ ]*\).*/\1\2/p' <<< "$row")"
}
first_node() { # The node of the script, if Slurm has removed it from a running job that continues without lost nodes
  local host=${row#* BatchHost=} names=${row#* NodeList=}
  [[ $row = *" JobState=RUNNING "*" BatchHost="* ]] && grep -q -- '"--no-kill"' ../order || return 0
  names=$(scontrol show hostnames "${names%% *}") && ! grep -qxF "${host%% *}" <<< "$names" && echo "${host%% *}"
}
# Read records and Slurm's state from one moment: a job may start and end between the two reads.
for try in 1 2 3 4 5; do
  submitted=$(newest)
  [[ ! -e ended && -n $submitted ]] || { books; exit 0; }
  job=$(sed -n 's/^job=//p' "$submitted")
  ask
  before=$state written=$(books)
  ask
  [[ $state != "$before" || $(newest) != "$submitted" ]] || break
  ((try < 5)) || row='the job changed during every read'
done
printf '%s\n' "$written"
if [[ $state = "0 "* && $row = *JobState=* ]]; then
  printf 'row\t%s\n' "${row%%$'\n'*}"
  printf 'headless\t%s\n' "$(first_node)"
elif [[ $row = *"Invalid job id"* ]]; then
  printf 'gone\t%s\n' "$(sacct -X -n -P -D -j "$job" -o State 2>/dev/null | tail -n 1)"
else
  printf 'trouble\t%s\n' "${row##*$'\n'}"
fi
now=$(date +%s)
for beat in "$(ls -d ../attempts/* 2>/dev/null | sort -V | tail -n 1)"/node-*/beat; do
  node=${beat%/beat}
  [[ ! -e $beat ]] || printf 'beat\t%s\t%s\n' "$((now - $(stat -c %Y "$beat")))" "${node##*/node-}"
done
"""
"""Prints lines of `order`, `fact`, `row` with `headless`, `gone` or `trouble`, and `beat`.
Prints nothing for an unknown launch."""

SUBMIT: Final = (
    _FUNCTIONS
    + r"""
folder=$1 key=$2 number=$3
shift 3
mkdir -p "$folder/facts" && cd "$folder" || exit 1
turn
settled() { [[ -e facts/cancelled || -e facts/ended || -e facts/submitted.$number ]]; }
if settled; then exit 0; fi
if [[ ! -e order ]]; then
  rm -rf draft && mkdir draft && tar -xf - -C draft || exit 1
  for part in draft/*; do rm -rf "${part#draft/}"; [[ $part = draft/order ]] || mv "$part" . || exit 1; done
  mv draft/order . || exit 1
fi
# After a submission whose response was lost, the job exists under its name.
known=$(mine "$key") || exit 75
for job in $known; do
  grep -qsx "job=$job" facts/submitted.* || { fact "submitted.$number" "job=$job"; exit; }
done
job=$(sbatch --parsable "$@" job.sbatch) || exit 65
fact "submitted.$number" "job=${job%%;*}"
"""
)
"""Arguments: directory, key, number of the Slurm job within the launch, sbatch options.
Input: a tar of the directory."""

CANCEL: Final = (
    _FUNCTIONS
    + r"""
mkdir -p "$1/facts" && cd "$1" || exit 1
fact cancelled "at=$3" || exit 1
# Lock after the fact is written: an earlier submission is found here, and a later one finds the fact.
turn
jobs=$(mine "$2") || exit 75
at=$(sed -n 's/^at=\([0-9]*\).*/\1/p' facts/cancelled)
for job in $jobs; do
  if ((${3%.*} - at > 45)); then
    scancel "$job"
  else
    # A running job is signalled and saves; its script does the rest.
    scancel --state=PENDING "$job"
    scancel --state=RUNNING --batch --signal=USR2 "$job"
  fi
done 2> /dev/null
true
"""
)
"""Arguments: directory, key, time.
A script that does not end in time is killed by a later cancel."""

WRITE_FACTS: Final = (
    _FUNCTIONS
    + r"""
cd "$1" || exit 1
shift
while (($#)); do
  fact "$1" "$2" || exit 1
  shift 2
done
# Delete secrets as soon as the launch has ended.
[[ ! -e facts/ended && ! -e facts/forgotten ]] || rm -rf scripts/ENVS stage.*.tar draft
"""
)
"""Arguments: directory, then names and texts of facts."""

UNSUBMIT: Final = r"""
cd "$1" 2>/dev/null || exit 0
compgen -G 'facts/submitted.*' > /dev/null || rm -rf scripts/ENVS draft
"""
"""Argument: directory. Deletes the secrets of a launch that Slurm rejected."""

REQUEUE: Final = r"""
# Skip if Slurm has already requeued the job: another requeue would end the next placement.
[[ " $(scontrol -o show job "$2") " != *" Restarts=$3 "* ]] || scontrol requeue "$2"
"""
"""Arguments: directory, Slurm job number, number of previous requeues."""

DRILL: Final = r"""
cd "$1/attempts/$2" 2>/dev/null || exit 66
attempt=$PWD
for node in node-*; do
  # A node that does not see this directory would not learn of the drill.
  [[ -e $node/beat || -e $node/gone ]] || exit 66
done
[[ ! -e drill ]] || exit 17
[[ -z $3 ]] || cd "node-$3" || exit 66
umask 077
printf '%s\n' "$4" > ".drill.$$" && ln ".drill.$$" drill 2>/dev/null
made=$?
rm -f ".drill.$$"
((made == 0)) || exit 17
# The nodes look for it every few seconds.
"""
"""Arguments: directory, attempt, node or empty for all, seconds of notice.
Has these nodes end as in a preemption. Exits with 66 if they cannot see the directory, and 17 if another drill is in progress."""

WAITS: Final = "[[ -e $1/attempts/$2/node-0/run/waits-for-nodes ]]"
"""Arguments: directory, attempt. Checks whether the ranks would wait for those of a lost node."""

LIST_LOGS: Final = r"""
cd "$1/attempts" 2>/dev/null || exit 0
find . -type f \( -path './*/node-*/node.log' -o -path './*/node-*/run/ranks/rank-*.log' \) -printf '%s %P\n'
"""

READ_LOG: Final = r"""
cd "$1/attempts" 2>/dev/null || exit 0
[[ ! -e $2 ]] || tail -c "+$(($3 + 1))" "$2" | head -c "$4"
"""
"""Arguments: directory, path below `attempts`, offset, limit."""

LIST_KEYS_WITH_FILES: Final = r"""
cd "$1/launches" 2>/dev/null || exit 0
find . -mindepth 2 -maxdepth 2 ! -name facts ! -name order ! -name lock -printf '%h\n' | sort -u
"""
"""Argument: root of the shared directory.
Prints launches that have more than a record, as `./KEY`."""

DISCARD: Final = (
    _FUNCTIONS
    + r"""
cd "$1" 2>/dev/null || exit 0
turn
shopt -s nullglob
begun=(facts/submitted.*)
[[ -e facts/ended || -e facts/forgotten ]] || [[ -e facts/cancelled && ${#begun[@]} = 0 ]] || exit 0
# Slurm may still have the job of an ended launch, or a job whose number was lost with a response.
jobs=$(squeue -h -a -u "$(id -un)" -n "$2" -t pending,running,suspended,completing -o %A) || exit 75
[[ -z $jobs ]] || exit 0
find . -mindepth 1 -maxdepth 1 ! -name facts ! -name order ! -name lock -exec rm -rf {} +
"""
)
"""Arguments: directory, key.
Deletes the files of an ended launch except its record; keeps all files of other launches."""

INSTALL_WORKER: Final = r"""
[[ ! -d $1 ]] || exit 0
draft=$1.$$.$RANDOM
mkdir -p "$draft" && tar -xf - -C "$draft" || exit 1
mv -T "$draft" "$1" 2>/dev/null || { rm -rf "$draft"; [[ -d $1 ]]; }
"""
"""Argument: directory of the worker. Input: a tar of it."""

HAS_WORKER: Final = '[[ -d $1 ]] && touch -c "$1"'
"""Checks that the worker exists and marks it as used; see `DELETE_OLD_WORKERS`."""

DELETE_OLD_WORKERS: Final = r"""
cd "$1/workers" 2>/dev/null || exit 0
unneeded() { find "$@" -maxdepth 0 -type d -user "$(id -un)" -mmin "+$days" 2>/dev/null; }
days=$(($3 * 24 * 60))
shopt -s nullglob
workers=()
# Only directories named like workers; others belong to users.
for name in *; do [[ ! $name =~ ^[0-9a-f]{16}$ ]] || workers+=("$name"); done
((${#workers[@]})) || exit 0
mapfile -t old < <(unneeded "${workers[@]}" | grep -vxF "${2##*/}")
((${#old[@]})) || exit 0
# Slurm may still have the job of an ended launch, and records of other users may be unreadable.
jobs=$(squeue -h -a -u "$(id -un)" -t pending,running,suspended,completing -o %j) || exit 0
scripts=()
for launch in ../launches/*; do
  [[ -r $launch/facts && -x $launch/facts ]] || exit 0
  [[ -e $launch/facts/ended || -e $launch/facts/forgotten ]] && ! grep -qxF "${launch##*/}" <<< "$jobs" && continue
  [[ ! -e $launch/job.sbatch ]] || scripts+=("$launch/job.sbatch")
done
for worker in "${old[@]}"; do
  if ((${#scripts[@]})); then
    grep -qF "/workers/$worker" "${scripts[@]}"
    case $? in
      0) touch -c "$worker"; continue ;;
      1) ;;
      *) exit 0 ;;
    esac
  fi
  # Rename first: a partly deleted worker could be used.
  [[ -z $(unneeded "$worker") ]] || { mv -T "$worker" "$worker.gone.$$" && rm -rf "$worker.gone.$$"; }
done
exit 0
"""
"""Arguments: root, the worker of this service, days.
Deletes workers unused for this long that no open launch uses."""

ENGINE_INFO: Final = r"""
export SLURM_TIME_FORMAT=%s
mkdir -p "$1" && [[ -w $1 ]] || { echo "the directory $1 is not writable" >&2; exit 73; }
scontrol --version && date +%s && sinfo -h -o %R
"""

LIST_JOBS: Final = r"""
squeue -h -a -u "$(id -un)" -t pending,running,suspended,completing -o '%A %j %k'
"""
"""Prints number, name and comment of all jobs of this user."""
