import { readFileSync } from "node:fs";

const settings = JSON.parse(readFileSync("settings.json", "utf8"));

export const name = settings.name;
