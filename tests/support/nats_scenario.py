"""What a user of nats-py does: ordinary subjects, mailboxes, a group, a refusal, a drain. Prints a JSON report."""

import asyncio
import json
import os
import ssl
from typing import Any

import nats
import nats.errors


async def main() -> dict[str, Any]:
    seen: dict[str, Any] = {"errors": []}

    async def on_error(error: Exception) -> None:
        seen["errors"].append(str(error).lower())

    options: dict[str, Any] = {"error_cb": on_error}
    if os.environ["NATS_TOKEN"]:
        options["token"] = os.environ["NATS_TOKEN"]
    if os.environ["NATS_CA"]:
        options["tls"] = ssl.create_default_context(cafile=os.environ["NATS_CA"])
    client = await nats.connect(os.environ["NATS_URL"], **options)

    async def ask(subject: str, body: Any = None, headers: Any = None) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return json.loads((await client.request(subject, data, timeout=10, headers=headers)).data)

    async def echo(message: Any) -> None:
        await message.respond(message.data + b"!")

    service = await client.subscribe("service.echo", queue="q", cb=echo)
    seen["echo"] = (await client.request("service.echo", b"hello", timeout=10)).data.decode()
    try:
        await client.request("nobody.there", b"", timeout=10)
    except nats.errors.NoRespondersError:
        seen["nobody"] = True
    await service.unsubscribe()

    box = (await ask("$mq9.AI.MAILBOX.CREATE", {"ttl": 60}))["mail_id"]
    subject = f"$mq9.AI.MAILBOX.MSG.{box}"
    for suffix in ("", ".urgent", ".critical"):
        await client.publish(subject + suffix, b"stored" + suffix.encode(), headers={"X-Kind": "test"})
    await client.flush(timeout=10)
    seen["listed"] = [each["priority"] for each in (await ask(f"$mq9.AI.MAILBOX.LIST.{box}"))["messages"]]
    mails = await client.subscribe(subject + ".*")
    seen["receipt"] = await ask(subject, b"live")
    got = [await mails.next_msg(timeout=10) for _ in range(4)]
    seen["read"] = [each.data.decode() for each in got]
    seen["ids"] = [each.headers["mq9-msg-id"] for each in got]
    seen["kind"] = got[0].headers["X-Kind"]
    seen["deleted"] = [(await ask(f"$mq9.AI.MAILBOX.DELETE.{box}.1"))["deleted"] for _ in range(2)]

    await client.subscribe("$mq9.AI.MAILBOX.MSG.*")
    await client.subscribe(subject.replace("m-", "m-0"))
    await client.flush(timeout=10)
    seen["alive"] = client.is_connected

    shared = [await client.subscribe(subject, queue="w") for _ in range(2)]
    await client.flush(timeout=10)
    for _ in range(20):
        await client.publish(subject, b"work")
    first = [await each.next_msg(timeout=10) for each in shared]
    seen["shared"] = len({each.headers["mq9-msg-id"] for each in first})
    await client.close()  # drain would wait for the rest of the work to be read
    return seen


print(json.dumps(asyncio.run(main())))
