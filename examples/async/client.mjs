// Creates a job and waits until it is over. Needs nothing but Node 18.
import { randomUUID } from "node:crypto";

const url = process.env.JOBS_URL ?? "http://localhost:8080";
const token = process.env.JOBS_TOKEN;

async function call(method, path, body, headers = {}) {
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(url + path, { method, headers, body: body && JSON.stringify(body) });
  const json = await answer.json();
  if (!answer.ok) throw new Error(`${json.code}: ${json.detail}`);
  return json;
}

// The key makes it safe to repeat the request when its answer got lost: there will be one job.
const key = { "Idempotency-Key": randomUUID() };
let job = await call("POST", "/jobs", { type: "email", payload: { to: "someone@example.org" } }, key);
while (["pending", "running"].includes(job.status)) job = await call("GET", `/jobs/${job.id}?wait=10s`);
console.log(job.id, job.status, job.status === "completed" ? job.result : job.error);
