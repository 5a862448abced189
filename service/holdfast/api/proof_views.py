"""Comparisons of jobs as the API shows them."""

from __future__ import annotations

from dataclasses import asdict

from holdfast.api.proof_schemas import ProofOut
from holdfast.domain.events import RunsCompared


def proof_view(fact: RunsCompared) -> ProofOut:
    """One comparison, as people see it."""
    return ProofOut.model_validate({**asdict(fact), "holds": fact.holds, "why": fact.why})
