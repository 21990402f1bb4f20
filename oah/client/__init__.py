"""The Python SDK that users import: `Client` (submit, wait, stream, cancel). Always sends idempotency keys."""
