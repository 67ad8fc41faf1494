import * as fs from "fs";

// Only pnpm stores packages in this directory, and only yarn writes this file.
const isOfPnpm = fs.realpathSync(require.resolve("is-number")).includes("/node_modules/.pnpm/");
const isOfYarn = fs.existsSync("node_modules/.yarn-integrity");
export const manager = isOfPnpm ? "pnpm" : isOfYarn ? "yarn" : "npm";
export const commit: string = "one";
