"""Databases of applications: statements by any connection, versioned schemas, DSNs.

Knows PostgreSQL and SQLite, through SQLAlchemy or a DB-API driver. Imports no driver before one is
used.
"""
