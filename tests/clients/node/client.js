// What test_node_amqplib.py asks of amqplib: `node client.js STEP URL QUEUE`, one JSON object on standard output.
"use strict";
const amqp = require("amqplib");

const COUNT = 200;
const text = (message) => message.content.toString();

async function using(url, work) {
  const connection = await amqp.connect(url, { noDelay: true });
  connection.on("error", () => {}); // told by what fails as well
  try {
    return await work(connection);
  } finally {
    await connection.close().catch(() => {});
  }
}

async function everything(channel, queue) {
  const found = [];
  for (;;) {
    const message = await channel.get(queue);
    if (!message) return found;
    found.push({ body: text(message), redelivered: message.fields.redelivered });
    channel.ack(message);
  }
}

const steps = {
  // Publish with confirms, consume with a prefetch, in order.
  async work(url, queue) {
    return using(url, async (connection) => {
      const channel = await connection.createConfirmChannel();
      await channel.assertQueue(queue, { durable: true });
      for (let n = 0; n < COUNT; n++) {
        channel.sendToQueue(queue, Buffer.from(`${n}`), { persistent: true, headers: { n, deep: { list: [1, "two", true] } } });
      }
      await channel.waitForConfirms();
      await channel.prefetch(10);
      const found = [];
      let headers;
      await new Promise((resolve, reject) => {
        channel.consume(queue, (message) => {
          if (message === null) return reject(new Error("cancelled"));
          found.push(text(message));
          headers = message.properties.headers;
          channel.ack(message);
          if (found.length === COUNT) resolve();
        }).catch(reject);
      });
      const { messageCount } = await channel.deleteQueue(queue);
      return { found, headers, messageCount };
    });
  },

  // A queue that refuses, a message that nobody gets, an error that closes a channel.
  async refusals(url, queue) {
    return using(url, async (connection) => {
      const channel = await connection.createConfirmChannel();
      await channel.assertQueue(queue, { exclusive: true, maxLength: 1, arguments: { "x-overflow": "reject-publish" } });
      const publish = (key, options) => new Promise((resolve) => {
        channel.publish("", key, Buffer.from("x"), options, (error) => resolve(error ? "nack" : "ack"));
      });
      const confirms = [await publish(queue), await publish(queue)];
      const returned = new Promise((resolve) => channel.once("return", (message) => resolve(message.fields.replyText)));
      confirms.push(await publish(`${queue}.nobody`, { mandatory: true }));
      const other = await connection.createChannel();
      const closed = new Promise((resolve) => other.once("error", (error) => resolve(error.code)));
      await other.checkQueue(`${queue}.nowhere`).catch(() => {});
      return { confirms, returned: await returned, closed: await closed };
    });
  },

  // Publish until the connection is lost, then come back. "ready" tells that it may be lost now.
  async lost(url, queue) {
    const confirmed = new Set();
    const again = [];
    let told = false;
    let reasons = [];
    for (let next = 0; confirmed.size < COUNT; ) {
      const missing = () => [...Array(COUNT).keys()].filter((n) => !confirmed.has(n));
      try {
        const connection = await amqp.connect(url, { noDelay: true });
        let over = false;
        connection.on("error", (error) => reasons.push(error.code ?? error.message));
        connection.on("close", () => { over = true; });
        const channel = await connection.createConfirmChannel();
        channel.on("error", () => {});
        await channel.assertQueue(queue, { durable: true });
        for (const n of missing()) {
          if (over) throw new Error("lost");
          await new Promise((resolve, reject) => {
            connection.once("close", reject);
            channel.sendToQueue(queue, Buffer.from(`${n}`), { persistent: true }, (error) => (error ? reject(error) : resolve()));
          });
          confirmed.add(n);
          if (!told && n === COUNT / 4) {
            told = true;
            const lost = new Promise((resolve) => connection.once("close", resolve));
            console.log("ready");
            await lost;
          }
        }
        const found = await everything(channel, queue);
        await channel.deleteQueue(queue);
        await connection.close();
        return { found, again, reasons };
      } catch (error) {
        again.push(missing()[0]);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
  },
};

const [step, url, queue] = process.argv.slice(2);
steps[step](url, queue).then(
  (answer) => console.log(JSON.stringify(answer)),
  (error) => { console.error(error); process.exit(1); },
);
