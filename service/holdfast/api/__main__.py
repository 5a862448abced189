"""`python -m holdfast.api` prints the OpenAPI description for `docs/reference/openapi.json`."""

import json
import sys

from holdfast.api.app import describe

sys.stdout.write(json.dumps(describe(), indent=2, sort_keys=True) + "\n")
