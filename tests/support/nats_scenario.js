// What a user of nats.js does: the same as nats_scenario.py. Prints a JSON report.
const { connect, headers, ErrorCode, StringCodec } = require("nats");
const text = StringCodec();

async function take(subscription, count) {
  const found = [];
  for await (const message of subscription) {
    found.push(message);
    if (found.length === count) return found;
  }
  return found;
}

async function main() {
  const seen = { errors: [] };
  const options = { servers: process.env.NATS_URL };
  if (process.env.NATS_TOKEN) options.token = process.env.NATS_TOKEN;
  if (process.env.NATS_CA) options.tls = { caFile: process.env.NATS_CA };
  const client = await connect(options);
  (async () => {
    for await (const status of client.status()) if (status.type === "error") seen.errors.push(String(status.data).toLowerCase());
  })();
  const bytes = (body) => (typeof body === "string" ? text.encode(body) : text.encode(JSON.stringify(body ?? {})));
  const ask = async (subject, body) => JSON.parse(text.decode((await client.request(subject, bytes(body), { timeout: 10000 })).data));

  const service = client.subscribe("service.echo", { queue: "q", callback: (_, message) => message.respond(text.encode(text.decode(message.data) + "!")) });
  seen.echo = text.decode((await client.request("service.echo", text.encode("hello"), { timeout: 10000 })).data);
  try {
    await client.request("nobody.there", text.encode(""), { timeout: 10000 });
  } catch (error) {
    seen.nobody = error.code === ErrorCode.NoResponders;
  }
  service.unsubscribe();

  const box = (await ask("$mq9.AI.MAILBOX.CREATE", { ttl: 60 })).mail_id;
  const subject = `$mq9.AI.MAILBOX.MSG.${box}`;
  const kind = headers();
  kind.set("X-Kind", "test");
  for (const suffix of ["", ".urgent", ".critical"]) client.publish(subject + suffix, text.encode("stored" + suffix), { headers: kind });
  await client.flush();
  seen.listed = (await ask(`$mq9.AI.MAILBOX.LIST.${box}`)).messages.map((each) => each.priority);
  const mails = client.subscribe(subject + ".*");
  seen.receipt = await ask(subject, "live");
  const got = await take(mails, 4);
  seen.read = got.map((each) => text.decode(each.data));
  seen.ids = got.map((each) => each.headers.get("mq9-msg-id"));
  seen.kind = got[0].headers.get("X-Kind");
  seen.deleted = [];
  for (let i = 0; i < 2; i++) seen.deleted.push((await ask(`$mq9.AI.MAILBOX.DELETE.${box}.1`)).deleted);

  for (const refused of ["$mq9.AI.MAILBOX.MSG.*", subject.replace("m-", "m-0")]) {
    client.subscribe(refused, { callback: (error) => error && seen.errors.push(String(error.message).toLowerCase()) });
  }
  await client.flush();
  seen.alive = !client.isClosed();

  const shared = [client.subscribe(subject, { queue: "w" }), client.subscribe(subject, { queue: "w" })];
  await client.flush();
  for (let i = 0; i < 20; i++) client.publish(subject, text.encode("work"));
  const first = (await Promise.all(shared.map((each) => take(each, 1)))).flat();
  seen.shared = new Set(first.map((each) => each.headers.get("mq9-msg-id"))).size;
  await client.drain();
  return seen;
}

main().then((seen) => console.log(JSON.stringify(seen)), (error) => { console.error(error); process.exit(1); });
