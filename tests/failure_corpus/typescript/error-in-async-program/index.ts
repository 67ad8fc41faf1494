import { readFile } from "node:fs/promises";

async function main() {
    const key = await readFile("keys/deploy.pub", "utf8");
    return { key };
}

export = main;
