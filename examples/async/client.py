"""Creates a job and waits until it is over. Needs nothing but Python 3."""
import json, os, urllib.request, uuid

URL = os.environ.get("JOBS_URL", "http://localhost:8080")

def call(method, path, body=None, **headers):
    if token := os.environ.get("JOBS_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Content-Type": "application/json", **headers}
    with urllib.request.urlopen(urllib.request.Request(URL + path, data, headers, method=method)) as answer:
        return json.load(answer)

# The key makes it safe to repeat the request when its answer got lost: there will be one job.
key = {"Idempotency-Key": str(uuid.uuid4())}
job = call("POST", "/jobs", {"type": "email", "payload": {"to": "someone@example.org"}}, **key)
while job["status"] in ("pending", "running"):
    job = call("GET", f"/jobs/{job['id']}?wait=10s")
print(job["id"], job["status"], job["result"] if job["status"] == "completed" else job["error"])
