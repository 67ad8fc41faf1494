// TLS for tests: a proxy with a certificate in front of the UI, like an Ingress, and the arguments with which Chromium
// accepts certificates of an authority that it does not know.
import { createHash, X509Certificate } from "node:crypto";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { request as send } from "node:http";
import { createServer } from "node:https";

// Starts a proxy in front of the UI. Returns the port of the proxy, and a function that ends the proxy.
export async function encrypt(url, { certificate, key }) {
  const settings = { cert: await readFile(certificate), key: await readFile(key) };
  const server = createServer(settings, (request, response) => {
    // The header `Host` remains, because the UI compares it with the origin of a form. Each request has its own
    // connection, because kubectl can close an idle connection at any time.
    const { connection: _, ...headers } = request.headers;
    const forwarded = send(new URL(request.url, url), { method: request.method, headers, agent: false });
    forwarded.on("response", (answer) => {
      const { connection: _, ...headers } = answer.headers;
      response.writeHead(answer.statusCode, headers);
      // Streams start with their headers.
      response.flushHeaders();
      answer.pipe(response);
    });
    forwarded.on("error", () => response.destroy());
    response.on("close", () => forwarded.destroy());
    request.pipe(forwarded);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const end = () => {
    server.close();
    server.closeAllConnections();
  };
  return { port: server.address().port, end };
}

// Returns the arguments with which Chromium connects to a local port instead of this host, and accepts these
// certificates, but no others.
export async function browserArguments(host, port, certificates) {
  const digests = await Promise.all(certificates.map(keyDigest));
  return [
    // A proxy in the environment could not connect to the addresses of the test cluster.
    "--no-proxy-server",
    `--host-resolver-rules=MAP ${host} 127.0.0.1:${port}`,
    `--ignore-certificate-errors-spki-list=${digests.join(",")}`,
  ];
}

async function keyDigest(file) {
  const { publicKey } = new X509Certificate(await readFile(file));
  return createHash("sha256").update(publicKey.export({ type: "spki", format: "der" })).digest("base64");
}
