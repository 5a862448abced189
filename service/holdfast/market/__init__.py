"""What is known of the places of a job: prices, beliefs about spot nodes, and how long a start takes."""
