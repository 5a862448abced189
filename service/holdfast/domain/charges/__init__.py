"""What a job costs beside its nodes: storage, requests, egress and disks."""
