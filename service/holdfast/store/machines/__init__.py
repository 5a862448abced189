"""What the service knows of the machines that jobs run on."""
