"""What all that travels over the API has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Schema(BaseModel):
    """Strict about names, so that a misspelt field is an answer and not a silence."""

    model_config = ConfigDict(extra="forbid")
