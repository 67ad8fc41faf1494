export const version: string = require("is-number/package.json").version;
export const commit: string = "one";
