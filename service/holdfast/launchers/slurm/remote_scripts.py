"""What is said to the machine that has Slurm, as texts for bash. Each may be repeated, and be cut off anywhere.

The first argument is always the folder of the launch. Facts are files that are put in place by a link: whole, and once.
"""

from __future__ import annotations

from typing import Final

_FACT: Final = r"""
umask 077
set -o pipefail
fact() { # NAME TEXT: put it down, unless somebody did so before
  local draft=facts/.$1.$$.$RANDOM
  printf '%s' "$2" > "$draft" && { ln "$draft" "facts/$1" 2>/dev/null || [[ -e facts/$1 ]]; }
  local code=$?
  rm -f "$draft"
  return $code
}
turn() { # One at a time: another replica may be about to do the same
  exec 9> lock && flock -w 30 9 || { echo "another service is at work on this launch" >&2; exit 75; }
}
mine() { # KEY: its jobs, none of another service that calls one of its own so
  squeue -h -a -u "$(id -un)" -n "$1" -t all -o '%A %k' | sed -n "s|^\\([0-9]*\\) holdfast:${PWD%/launches/*}\$|\\1|p"
}
"""

LOOK: Final = r"""
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
ask() { # What Slurm says, and what of it matters
  row=$(scontrol -o show job "$job" 2>&1)
  state="$? $(sed -n 's/.*\(JobState=[^ ]*\).*\( Restarts=[^ ]*\).*/\1\2/p' <<< "$row")"
}
# Books and Slurm's word are of one moment: a job may begin and end while they are read one after the other.
for try in 1 2 3 4 5; do
  submitted=$(newest)
  [[ ! -e ended && -n $submitted ]] || { books; exit 0; }
  job=$(sed -n 's/^job=//p' "$submitted")
  ask
  before=$state written=$(books)
  ask
  [[ $state != "$before" || $(newest) != "$submitted" ]] || break
  ((try < 5)) || row='the job changes under every look'
done
printf '%s\n' "$written"
if [[ $state = "0 "* && $row = *JobState=* ]]; then
  printf 'row\t%s\n' "${row%%$'\n'*}"
elif [[ $row = *"Invalid job id"* ]]; then
  printf 'gone\t%s\n' "$(sacct -X -n -P -D -j "$job" -o State 2>/dev/null | tail -n 1)"
else
  printf 'trouble\t%s\n' "${row##*$'\n'}"
fi
now=$(date +%s)
for beat in "$(ls -d ../attempts/* 2>/dev/null | sort -V | tail -n 1)"/node-*/beat; do
  [[ ! -e $beat ]] || printf 'beat\t%s\n' "$((now - $(stat -c %Y "$beat")))"
done
"""
"""Prints lines of `order`, `fact`, `row` or `gone` or `trouble`, and `beat`; see `books`. Nothing of a launch that is not known."""

SUBMIT: Final = (
    _FACT
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
# Of a submit whose answer was lost: it is there under its name.
known=$(mine "$key") || exit 75
for job in $known; do
  grep -qsx "job=$job" facts/submitted.* || { fact "submitted.$number" "job=$job"; exit; }
done
job=$(sbatch --parsable "$@" job.sbatch) || exit 65
fact "submitted.$number" "job=${job%%;*}"
"""
)
"""Folder, key, number of the Slurm job within the launch, options of sbatch; a tar of the folder on its input."""

CANCEL: Final = (
    _FACT
    + r"""
mkdir -p "$1/facts" && cd "$1" || exit 1
fact cancelled "at=$3" || exit 1
# After it is written: a submit that has its turn before us is seen here, and one after us sees it.
turn
jobs=$(mine "$2") || exit 75
at=$(sed -n 's/^at=\([0-9]*\).*/\1/p' facts/cancelled)
for job in $jobs; do
  if ((${3%.*} - at > 45)); then
    scancel "$job"
  else
    # What has nodes is told, and saves its work; its script sees to the rest.
    scancel --state=PENDING "$job"
    scancel --state=RUNNING --batch --signal=USR2 "$job"
  fi
done 2> /dev/null
true
"""
)
"""Folder, key, time. A script that has not come to its end in time is killed by a later one."""

RECORD: Final = (
    _FACT
    + r"""
cd "$1" || exit 1
shift
while (($#)); do
  fact "$1" "$2" || exit 1
  shift 2
done
# Secrets stay no longer than what they are for.
[[ ! -e facts/ended && ! -e facts/forgotten ]] || rm -rf scripts/ENVS stage.*.tar draft
"""
)
"""Folder, then names and texts of facts."""

UNSUBMIT: Final = r"""
cd "$1" 2>/dev/null || exit 0
compgen -G 'facts/submitted.*' > /dev/null || rm -rf scripts/ENVS draft
"""
"""The folder of a launch that Slurm does not take: its secrets go."""

REQUEUE: Final = r"""
# Unless Slurm did so meanwhile: this would end the placement that came after.
[[ " $(scontrol -o show job "$2") " != *" Restarts=$3 "* ]] || scontrol requeue "$2"
"""
"""Folder, number of a Slurm job, how often it was queued again before."""

LOGS: Final = r"""
cd "$1/attempts" 2>/dev/null || exit 0
find . -type f \( -path './*/node-*/node.log' -o -path './*/node-*/run/ranks/rank-*.log' \) -printf '%s %P\n'
"""

READ: Final = r"""
cd "$1/attempts" 2>/dev/null || exit 0
[[ ! -e $2 ]] || tail -c "+$(($3 + 1))" "$2" | head -c "$4"
"""
"""Folder, path below `attempts`, offset, limit."""

KEPT: Final = r"""
cd "$1/launches" 2>/dev/null || exit 0
find . -mindepth 2 -maxdepth 2 ! -name facts ! -name order ! -name lock -printf '%h\n' | sort -u
"""
"""Root of the cluster's folder. Prints launches that have more than a record, each as `./KEY`."""

DISCARD: Final = (
    _FACT
    + r"""
cd "$1" 2>/dev/null || exit 0
turn
shopt -s nullglob
begun=(facts/submitted.*)
[[ -e facts/ended || -e facts/forgotten ]] || [[ -e facts/cancelled && ${#begun[@]} = 0 ]] || exit 0
# Slurm may still have the job of a launch that is over, or one whose number was lost with an answer.
jobs=$(squeue -h -a -u "$(id -un)" -n "$2" -t pending,running,suspended,completing -o %A) || exit 75
[[ -z $jobs ]] || exit 0
find . -mindepth 1 -maxdepth 1 ! -name facts ! -name order ! -name lock -exec rm -rf {} +
"""
)
"""Folder, key. Removes the files of a launch that is over, and keeps its record; a launch that may still run keeps all."""

WORKER: Final = r"""
[[ ! -d $1 ]] || exit 0
draft=$1.$$.$RANDOM
mkdir -p "$draft" && tar -xf - -C "$draft" || exit 1
mv -T "$draft" "$1" 2>/dev/null || { rm -rf "$draft"; [[ -d $1 ]]; }
"""
"""The folder of the worker; a tar of it on the input."""

KNOWS_WORKER: Final = '[[ -d $1 ]] && touch -c "$1"'
"""Says so, and that it is needed now; see `OLD_WORKERS`."""

OLD_WORKERS: Final = r"""
cd "$1/workers" 2>/dev/null || exit 0
unneeded() { find "$@" -maxdepth 0 -type d -user "$(id -un)" -mmin "+$days" 2>/dev/null; }
days=$(($3 * 24 * 60))
shopt -s nullglob
workers=()
# Called as workers are: what else lies here is somebody's own.
for name in *; do [[ ! $name =~ ^[0-9a-f]{16}$ ]] || workers+=("$name"); done
((${#workers[@]})) || exit 0
mapfile -t old < <(unneeded "${workers[@]}" | grep -vxF "${2##*/}")
((${#old[@]})) || exit 0
# Of a launch that is over Slurm may still have the job, and another user's books may not be ours to read.
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
  # Away at once: half a worker would be taken for one.
  [[ -z $(unneeded "$worker") ]] || { mv -T "$worker" "$worker.gone.$$" && rm -rf "$worker.gone.$$"; }
done
exit 0
"""
"""Root, the worker of this service, days: removes those that nobody has needed for so long, and that no launch uses that is not over."""

VITALS: Final = r"""
export SLURM_TIME_FORMAT=%s
mkdir -p "$1" && [[ -w $1 ]] || { echo "the folder $1 cannot be written" >&2; exit 73; }
scontrol --version && date +%s && sinfo -h -o %R
"""

STRAYS: Final = r"""
squeue -h -a -u "$(id -un)" -t pending,running,suspended,completing -o '%A %j %k'
"""
"""Prints number, name and comment of all jobs of this user."""
