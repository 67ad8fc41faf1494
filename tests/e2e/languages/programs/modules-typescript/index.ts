import * as pulumi from "@pulumi/pulumi";
import { readFile } from "node:fs/promises";
import { language } from "./language.js";

// Only an ES module can use `await` at the top level.
const manifest: { type: string } = JSON.parse(await readFile("package.json", "utf8"));
export const project: string = pulumi.getProject();
export const system: string = `${language} es ${manifest.type}`;
