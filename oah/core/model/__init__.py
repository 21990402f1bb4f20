"""The nouns: ids, session, run, worker, lease, message, event … as frozen slotted dataclasses and StrEnums.

No behaviour beyond what a value knows of itself; judgements live in policy, storage in adapters.
"""
