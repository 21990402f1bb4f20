"""What every section is."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from oah.core.model.lane import NAME


def _pool_name(text: str) -> str:
    if not NAME.match(text):
        raise ValueError(f"'{text}' is no pool name: lower-case letters, digits, '.', '_', '-'; at most 63 characters")
    return text


PoolName = Annotated[str, AfterValidator(_pool_name)]
"""A pool of any other name would have no lane that a session can have."""


class Section(BaseModel):
    """Base of the nested sections: unknown names are errors, so that a typo is seen."""

    model_config = ConfigDict(extra="forbid", frozen=True)
