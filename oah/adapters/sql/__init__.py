"""The truth: SQLAlchemy Core tables, statements (one module per aggregate), migrations; PostgreSQL and SQLite.

Every write of an executing run passes the fence here. No ORM, no judgement.
"""
