// Forwards a local port to the UI of the controller with kubectl, like a user. Browsers accept the cookie of the
// session over HTTP only from localhost.
import { spawn } from "node:child_process";
import { createInterface } from "node:readline";

const ARGUMENTS = ["--namespace", "flux-system", "port-forward", "deployment/pulumi-controller", ":9294"];
const LIMIT = 30_000;

// Returns the URL of the UI, and a function that ends kubectl.
export async function forward() {
  const kubectl = spawn("kubectl", ARGUMENTS, { stdio: ["ignore", "pipe", "inherit"] });
  const timeout = setTimeout(() => kubectl.kill(), LIMIT);
  try {
    for await (const line of createInterface(kubectl.stdout)) {
      const port = line.match(/^Forwarding from 127\.0\.0\.1:(\d+) /)?.[1];
      if (port) {
        // Reads the rest of the output, because kubectl would otherwise exit.
        kubectl.stdout.resume();
        return { url: `http://localhost:${port}`, end: () => kubectl.kill() };
      }
    }
  } finally {
    clearTimeout(timeout);
  }
  throw new Error(`kubectl ${ARGUMENTS.join(" ")} has ended, or did not start within ${LIMIT / 1000} s`);
}
