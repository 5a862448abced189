"""Which events notify whom, in what words."""
