"""The NATS protocol in front of the mailboxes: parser, subjects, connections, feeds. No rule of mailboxes lives here.

Pure modules (no socket, no clock): commands, parser, frames, headers, subjects, interest, requests, answers.
"""
