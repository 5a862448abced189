"""SQLAlchemy tables, named as in the database."""
