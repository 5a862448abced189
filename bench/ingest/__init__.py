"""Cost of receiving reports of 1,000 workers, compared with an empty endpoint.

See README.md.

    services     the measured services, each a separate process with a database of 1,000 jobs
    baseline     an endpoint that stores nothing: the limit of Starlette and uvicorn
    load         a thousand workers in one process, at one delivery a second or as fast as possible
"""
