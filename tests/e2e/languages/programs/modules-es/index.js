import * as pulumi from "@pulumi/pulumi";
import { readFile } from "node:fs/promises";

// Only an ES module can use `await` at the top level.
const manifest = JSON.parse(await readFile("package.json", "utf8"));
export const project = pulumi.getProject();
export const system = typeof module === "object" ? "commonjs" : `es ${manifest.type}`;
