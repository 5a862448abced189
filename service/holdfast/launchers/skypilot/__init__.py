"""Launcher for SkyPilot managed jobs, one for each launch or node group.

The only package that depends on SkyPilot, through its API server's HTTP interface.

    api_client        one HTTP call, one attempt
    circuit_breaker   fails calls at once while the server is silent
    responses         classifies responses: success, refusal or inconclusive
    models            parses the contents of responses
    cached_reads      job events and the shared queue listing
    observe           derives an observation from events (pure)
    task_body         the body of a launch request
    upload            sends files to an API server on another machine
    launch_requests   the status of launch requests
    job_lookup        finds the job that a request became
    admission         the admission gate and the guarantee it gives
    orphans           finds and stops jobs and clusters without a launch
    launcher          one managed job: submit, observe, cancel, logs
    node_groups       the port: launches with one managed job for each node group, or with one
    group_history     what happened to all groups, and the placements that follow (pure)
    group_outcome     which groups have to end, and how a launch ended (pure)
    log_mirror        copies of logs
    placement_prices  prices of placements
    engine_info       SkyPilot's version, clouds and clock
"""

from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.launcher import SkyPilotLauncher
from holdfast.launchers.skypilot.node_groups import NodeGroupLauncher

__all__ = ["NodeGroupLauncher", "SkyPilotClient", "SkyPilotLauncher"]
