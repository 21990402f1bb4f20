"""What every section is."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of the nested sections: unknown names are errors, so that a typo is seen."""

    model_config = ConfigDict(extra="forbid", frozen=True)
