"""The example with Hugging Face's Trainer trains offline, and only rank 0 saves."""

from __future__ import annotations

import json
import os
from pathlib import Path

from worker.support.run_driver import RunDriver

SCRIPT = Path(__file__).parents[3] / "examples" / "tiny_bert" / "train.py"


def test_only_rank_0_saves_the_model_that_two_ranks_trained(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path)
    out = tmp_path / "tiny_out"
    out.mkdir()
    stale = out / "config.json"
    stale.write_text("of another run")
    os.utime(stale, (0, 0))

    codes = driver.run_ranks(2, str(SCRIPT), "--subset=64", "--epochs=1", f"--out={out}")

    logs = [driver.log(rank) for rank in (0, 1)]
    config = json.loads(stale.read_text())
    assert codes == [0, 0]
    assert [f"[RANK {rank}] WORLD_SIZE=2\n" in logs[rank] for rank in (0, 1)] == [True, True]
    assert [f"Saving model to {out}" in log for log in logs] == [True, False]
    assert {"model.safetensors", "tokenizer.json"} <= {file.name for file in out.iterdir()}
    assert (config["hidden_size"], config["num_hidden_layers"]) == (64, 2)
    assert (config["num_attention_heads"], config["intermediate_size"]) == (2, 256)
    assert config["max_position_embeddings"] == 256
    assert stale.stat().st_mtime > 0, "the file of another run is still there"
