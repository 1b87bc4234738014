"""A receiver for `llmlb usage deliver`: TOKEN=secret python3 receiver.py PORT usage.db"""
import hmac, json, os, sqlite3, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

token, db = os.environ["TOKEN"], sqlite3.connect(sys.argv[2])
db.execute("CREATE TABLE IF NOT EXISTS batches (key TEXT PRIMARY KEY)")
db.execute("CREATE TABLE IF NOT EXISTS records (id TEXT PRIMARY KEY, record TEXT NOT NULL)")

class Receiver(BaseHTTPRequestHandler):
    protocol_version, timeout = "HTTP/1.1", 1  # keep-alive; idle connections are closed after 1 s

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        sent = self.headers.get("Authorization", "").encode()
        if not hmac.compare_digest(sent, f"Bearer {token}".encode()):
            return self.respond(401)
        batch, key = json.loads(body), self.headers["Idempotency-Key"]
        with db:  # one transaction: the whole batch is stored, or nothing
            new = db.execute("INSERT OR IGNORE INTO batches VALUES (?)", [key])
            if new.rowcount:  # else it was stored before, and only the response was lost
                records = batch if isinstance(batch, list) else batch["records"]  # CloudEvents, or llmlb's JSON
                rows = [(record["id"], json.dumps(record)) for record in records]
                db.executemany("INSERT OR IGNORE INTO records VALUES (?, ?)", rows)
        self.respond(200)  # only after the commit: the batch is on disk

    def respond(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
