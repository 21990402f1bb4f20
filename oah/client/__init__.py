"""The Python SDK that users import: `Client` (submit, wait, stream, cancel). Always sends idempotency keys.

Answers are the JSON documents of the HTTP interface as plain dicts; errors are those of `oah.errors`.
"""

from oah.client.client import Client, Event, SubmitItem
from oah.client.own_run import OwnRun
from oah.client.webhooks import verify_webhook

__all__ = ["Client", "Event", "OwnRun", "SubmitItem", "verify_webhook"]
