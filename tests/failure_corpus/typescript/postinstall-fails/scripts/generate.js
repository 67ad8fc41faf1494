const { readFileSync, writeFileSync } = require("node:fs");

const schema = JSON.parse(readFileSync("schema.json", "utf8"));
writeFileSync("schema.ts", `export const version = ${JSON.stringify(schema.version)};\n`);
