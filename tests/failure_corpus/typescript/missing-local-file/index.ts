import { vpc } from "./network/vpc";

export const id = vpc.id;
