"""The spot market as jobs and imported recordings show it."""
