"""What it costs to take reports of a thousand workers, beside an endpoint that stores nothing. See README.md.

hosts        the services that are measured, each a process of its own over a database with a thousand jobs
bare         the endpoint that stores nothing: the limit that is set by Starlette and uvicorn
load         a thousand workers in one process, at one delivery a second or as fast as they are answered
"""
