"""What is known of the places of a job: prices, beliefs, and how long a start takes."""
