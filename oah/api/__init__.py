"""The HTTP process: app, schemas, auth, problems (RFC 9457), streams (SSE). Calls services in a thread pool; decides nothing."""
