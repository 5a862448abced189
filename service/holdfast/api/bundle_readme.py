"""What the README of a bundle says."""

from __future__ import annotations

from typing import Final

README: Final = """# The evidence of job {job}

All that the service knew of this job, up to {until}. `sha256sum -c SHA256SUMS` checks the other files.

| File | What it is |
|---|---|
| `job-file.yaml` | the job file as it was understood, without what it leaves to defaults. Secrets have names and no values |
| `tasks/launch-NNN.yaml` | the SkyPilot task that the launcher was given for each launch, without secrets and tokens |
| `run_manifest.json` | what the newest attempt came from: configuration, code, seeds, packages, machines, as its worker told it. Of the others in `manifests/` |
| `requirements.lock.txt` | what was installed there, for `pip install --no-deps -r` |
| `job.json` | the job as `GET /v1/jobs/{job}` shows it, without what is another at every look |
| `events.jsonl` | every fact, one on a line, in the order in which they were recorded: `at` is when it happened, `recorded_at` when it was written down |
| `newest-points.json` | the newest progress point of each attempt: its step and time |
| `bill.json`, `bill.csv` | where every millisecond and every micro-dollar went; the table by attempt, zone and day in UTC |
| `prices.jsonl` | those of the facts that tell a price: who told it, when, and whether it is simulated or estimated |
| `checkpoints.jsonl` | every try to save, newest first, and what became of it |
| `certificate.json` | where it was compared with the same job that was left alone: whether both came to the same, and what was compared |
| `story.txt` | the same as sentences |
| `versions.json` | of the service, of its fold and its database; whether the rules of providers were applied |

No logs and no curves are in it, nor anything that somebody would have to be asked for: it says what was recorded.

## How the bill follows

The bill is a pure function of `events.jsonl`, `newest-points.json` and, of a job that still runs, the time above.

1. `NodesReady` opens an attempt; `CapacityLost` or `Finished` closes it. Between two attempts the job waits, which costs nothing.
2. An attempt is cut in this order: *setup* until `RestoreStarted`, *restore* until `TrainingStarted`, then steps. Steps whose result was
   kept are *useful*: they are in the newest checkpoint from which a later attempt went on (`restored_from`), or in the model at the end. Those
   after it are *lost*; the last attempt of a job that runs or has succeeded has lost none. `stall_ms` of `CheckpointCommitted`, and the time after `WorkerLeft`, is *stalled*.
   While the program has reported nothing at all, an attempt that ended with a loss is *lost*, and any other is *unmeasured*.
3. They add up to the time for which nodes stood, in integer milliseconds. Each millisecond is paid at the price that held then:
   `micros_per_hour` of `NodesReady`, and of each `PriceChanged` of the same attempt and group from its `at` on. Fractions are
   carried, so that the phases add up to what the nodes cost, in integer micro-dollars.
4. `adjustments` in `bill.json` are rules of providers, as minimums; what was paid is the sum of both.
5. `on_demand_micros` is what the useful work, with one setup, would have cost on demand, and what was paid for *unmeasured* time; what was saved is that less what was paid.

`docs/reference/bill.md` of Holdfast has all of it, with the exact cuts.
"""
