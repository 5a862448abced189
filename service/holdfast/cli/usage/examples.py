"""Examples at the end of each command's help, as a user types them."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final = {
    "submit": (
        "holdfast submit train.yaml",
        "holdfast submit train.yaml --name lr-3e-4 --env LR=3e-4 --max-cost 50 --deadline 48h",
        "holdfast submit train.yaml --follow",
    ),
    "ps": ("holdfast ps", "holdfast ps --status training --tag team=nlp"),
    "show": ("holdfast show bert-large",),
    "logs": (
        "holdfast logs -f bert-large",
        "holdfast logs bert-large --attempt 2 --rank 3",
        "holdfast logs bert-large --errors",
    ),
    "events": ("holdfast events bert-large", "holdfast events bert-large --follow --json"),
    "exec": (
        "holdfast exec bert-large -- nvidia-smi",
        "holdfast exec bert-large --node 3 --timeout 5m -- py-spy dump --pid 4711",
    ),
    "shell": (
        "holdfast shell bert-large",
        "holdfast shell bert-large --node 3 -- watch nvidia-smi",
    ),
    "metrics": ("holdfast metrics bert-large", "holdfast metrics bert-large loss --x time"),
    "ranks": ("holdfast ranks bert-large", "holdfast ranks bert-large --attempt 2"),
    "queue": ("holdfast queue",),
    "priority": ("holdfast priority bert-large 10",),
    "quota list": ("holdfast quota list",),
    "quota set": (
        "holdfast quota set user ada --gpus 16 --jobs 4",
        "holdfast quota set service --hourly-cost 200",
        "holdfast quota set project nlp --nodes 8 --pause-for-priority",
    ),
    "quota unset": ("holdfast quota unset user ada",),
    "why": ("holdfast why bert-large",),
    "cancel": (
        "holdfast cancel bert-large",
        "holdfast cancel bert-large --reason 'wrong data set'",
        "holdfast cancel -l team=nlp,stage=dev --dry-run",
    ),
    "pause": ("holdfast pause bert-large", "holdfast pause bert-large --reason 'over the weekend'"),
    "resume": (
        "holdfast resume bert-large",
        "holdfast resume bert-large --max-cost 200",
        "holdfast resume bert-large --nodes 4 --infra slurm/gpu --dry-run",
    ),
    "limits": (
        "holdfast limits bert-large",
        "holdfast limits bert-large --max-cost 200 --deadline none",
    ),
    "retry": ("holdfast retry bert-large", "holdfast retry bert-large --env LR=1e-4"),
    "clone": ("holdfast clone bert-large --name bert-large-2 --env SEED=2",),
    "preempt": (
        "holdfast preempt bert-large --notice 30s",
        "holdfast preempt bert-large --node 0 --no-notice --force",
    ),
    "sweep": (
        "holdfast sweep train.yaml --param lr=1e-4,3e-4 --param seed=1..8 --parallel 4 --max-cost 200",
        "holdfast sweep train.yaml --param lr=1e-4,3e-4,1e-3 --stop-metric loss --grace 1000",
    ),
    "sweeps list": ("holdfast sweeps list --project nlp",),
    "sweeps show": ("holdfast sweeps show s1mnb7qz8w3td",),
    "sweeps set": ("holdfast sweeps set s1mnb7qz8w3td --max-cost 400 --parallel 8",),
    "label": (
        "holdfast label bert-large team=nlp stage-",
        "holdfast label -l sweep=lr stage=done --dry-run",
    ),
    "rm": (
        "holdfast rm j1mnb7qz8w3td j1mnc0r8k2v5a",
        "holdfast rm bert-large --checkpoints --yes",
    ),
    "render": (
        "holdfast render train.yaml",
        "holdfast render train.yaml --launcher slurm > train.sbatch",
        "holdfast render train.yaml --launcher torchrun --host 10.0.0.4 --host 10.0.0.5",
    ),
    "plan": (
        "holdfast plan train.yaml",
        "holdfast plan train.yaml --deadline 48h --max-cost 600 --work 31h",
        "holdfast plan bert-large",
    ),
    "advise": ("holdfast advise --params 7B", "holdfast advise --params 350M --deadline 5h"),
    "traces list": ("holdfast traces list",),
    "traces export": ("holdfast traces export --since 30d --out traces",),
    "traces import": (
        "holdfast traces import us-west-2a_v100_8.json",
        "holdfast traces import probes.json --place aws/us-east-1/us-east-1a",
    ),
    "prices": (
        "holdfast prices --accelerator A100:8",
        "holdfast prices --accelerator H100:8 --since 30d",
    ),
    "what-if loss": (
        "holdfast what-if loss --at 67h --every 4h --usd-per-day 2000",
        "holdfast what-if loss --at 10h --gpus A100:8 --nodes 8 --spot",
    ),
    "what-if cadence": (
        "holdfast what-if cadence --cost 45s --between-failures 3h",
        "holdfast what-if cadence --cost 45s --between-failures 3h --every 1h",
    ),
    "simulate": (
        "holdfast simulate traces/ --work 48h --deadline 1.25x --spot-price 0.97 --on-demand-price 3.06",
        "holdfast simulate counts.csv --gang 8 --zones together --work 40h --deadline 60h --prices prices.json --on-demand-price 3.06",
    ),
    "bill": ("holdfast bill bert-large", "holdfast bill bert-large --csv > bill.csv"),
    "costs": (
        "holdfast costs --by user --since 30d",
        "holdfast costs --by day --each project --csv",
    ),
    "preemptions": (
        "holdfast preemptions --by zone --since 30d",
        "holdfast preemptions --notices",
    ),
    "budgets list": ("holdfast budgets list",),
    "budgets set": ("holdfast budgets set project nlp --monthly 5000 --warn-at 80",),
    "budgets rm": ("holdfast budgets rm user ada",),
    "outputs": (
        "holdfast outputs bert-large",
        "holdfast outputs bert-large --download results",
        "holdfast outputs bert-large --node 1 --download results",
    ),
    "checkpoints": (
        "holdfast checkpoints bert-large",
        "holdfast checkpoints bert-large --state damaged",
    ),
    "manifest": (
        "holdfast manifest bert-large",
        "holdfast manifest bert-large --lock > requirements.txt",
    ),
    "bundle": ("holdfast bundle bert-large -o bert-large.zip",),
    "diff": ("holdfast diff bert-large bert-large-2",),
    "prove": ("holdfast prove train.yaml --steps 60 --kills 2",),
    "reproduce": (
        "holdfast reproduce bert-large --follow",
        "holdfast reproduce manifest.json --repo ~/src/bert --dry-run",
    ),
    "login": ("holdfast login --url https://holdfast.example.com --token - < token.txt",),
    "logout": ("holdfast logout",),
    "whoami": ("holdfast whoami",),
    "users list": ("holdfast users list",),
    "users add": ("holdfast users add ada",),
    "users disable": ("holdfast users disable ada",),
    "users enable": ("holdfast users enable ada",),
    "users link": ("holdfast users link ada f3b1c9d2-0c55-4d2e-9d2b-5a1f5c0b7a11",),
    "users promote": ("holdfast users promote ada", "holdfast users promote ada --back"),
    "projects list": ("holdfast projects list",),
    "projects add": ("holdfast projects add nlp",),
    "projects archive": ("holdfast projects archive nlp",),
    "projects use": ("holdfast projects use nlp",),
    "members list": ("holdfast members list nlp",),
    "members set": ("holdfast members set nlp ada member",),
    "members remove": ("holdfast members remove nlp ada",),
    "tokens list": ("holdfast tokens list",),
    "tokens add": (
        "holdfast tokens add laptop",
        "holdfast tokens add ci --user ada --project nlp --scope read --days 30",
    ),
    "tokens rotate": ("holdfast tokens rotate 58449ef2e0fb",),
    "tokens revoke": ("holdfast tokens revoke 58449ef2e0fb",),
    "audit": ("holdfast audit --actor ada --limit 20",),
    "audit verify": ("holdfast audit verify",),
    "serve": ("holdfast serve", "holdfast serve --port 9000", "holdfast serve --demo 7"),
    "up": ("holdfast up --install", "holdfast up --stop"),
    "doctor": ("holdfast doctor train.yaml", "holdfast doctor --store s3://my-bucket/runs --perf"),
    "demo": ("holdfast demo",),
    "channels list": ("holdfast channels list --project nlp",),
    "channels add": (
        "holdfast channels add alerts https://hooks.example.com/holdfast --kind failed",
        "holdfast channels add ada mailto:ada@example.com --digest 3600",
    ),
    "channels rm": ("holdfast channels rm alerts",),
    "channels rotate": ("holdfast channels rotate alerts",),
    "channels test": ("holdfast channels test alerts",),
    "channels deliveries": (
        "holdfast channels deliveries alerts",
        "holdfast channels deliveries --job bert-large",
    ),
    "launches list": ("holdfast launches list",),
    "launches stop": ("holdfast launches stop j1mnb7qz8w3td-1",),
    "mcp": ("holdfast mcp", "holdfast mcp --folder ~/jobs --allow-actions"),
    "wheelhouse": (
        "holdfast wheelhouse",
        "holdfast wheelhouse --python 3.11 --platform manylinux_2_28_x86_64 -o wheels.tar",
    ),
    "db upgrade": ("holdfast db upgrade",),
    "db downgrade": ("holdfast db downgrade 0007",),
    "db current": ("holdfast db current",),
    "db backup": ("holdfast db backup holdfast-backup.db",),
    "db restore": ("holdfast db restore holdfast-backup.db",),
    "db check": ("holdfast db check", "holdfast db check --repair"),
}
"""Examples by command; a group shows the first example of each of its commands."""


def examples_of(command: str) -> tuple[str, ...]:
    """Return the examples of a command, or those of a group's commands."""
    if command in EXAMPLES:
        return EXAMPLES[command]
    return tuple(ones[0] for name, ones in EXAMPLES.items() if name.startswith(f"{command} "))
