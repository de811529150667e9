"""What every block of a study's configuration is: frozen, and closed to keys it does not know."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Options(BaseModel):
    """A block of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
