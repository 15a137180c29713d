// Contestant BullMQ: see src/peers.rs for what the three commands have to do.
const { Queue, Worker } = require("bullmq");
const { randomBytes } = require("crypto");

const [command, address, ...rest] = process.argv.slice(2);
const [host, port] = address.split(":");
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const numbers = rest.map(Number);
const options = { removeOnComplete: true };
const now = () => performance.timeOrigin + performance.now();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// About 200 bytes as JSON, all distinct.
const data = (number) => ({ number, padding: randomBytes(85).toString("hex") });

async function enqueue(count) {
  const queue = new Queue("bench", { connection });
  for (let first = 0; first < count; first += 500) {
    const size = Math.min(500, count - first);
    await queue.addBulk(
      Array.from({ length: size }, (_, at) => ({ name: "noop", data: data(first + at), opts: options })),
    );
  }
  await queue.close();
}

async function work(concurrency) {
  const worker = new Worker("bench", async () => {}, { connection, concurrency });
  process.on("SIGTERM", async () => {
    await worker.close();
    process.exit(0);
  });
}

async function pickup(rate, count) {
  const queue = new Queue("bench", { connection });
  const pushed = [];
  const waited = [];
  let seen = 0;
  const started = async (job) => {
    waited[job.data.number] = now() - pushed[job.data.number];
    seen += 1;
  };
  const worker = new Worker("bench", started, { connection, concurrency: 10 });
  await worker.waitUntilReady();
  await sleep(2000);
  const start = now();
  for (let number = 0; number < count; number += 1) {
    const due = start + (number * 1000) / rate;
    const job = data(number);
    if (due > now()) await sleep(due - now());
    pushed[number] = now();
    // Not awaited: an open loop does not wait.
    queue.add("noop", job, options);
  }
  while (seen < count) await sleep(50);
  for (const wait of waited) console.log(Math.max(0, Math.round(wait * 1000)));
  await worker.close();
  await queue.close();
}

const commands = { enqueue, work, pickup };
commands[command](...numbers).catch((error) => {
  console.error(error);
  process.exit(1);
});
