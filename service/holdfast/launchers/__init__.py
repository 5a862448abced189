"""The outside world behind the ports: one module or package a launcher. They know ports and domain only."""
