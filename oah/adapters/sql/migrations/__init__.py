"""Alembic's home: every change of the schema since the first release, in order. Shipped in the package."""
