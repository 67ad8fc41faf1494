import { Service } from "./components/service";

const web = new Service("web", { port: 99999 });

export const urn = web.urn;
