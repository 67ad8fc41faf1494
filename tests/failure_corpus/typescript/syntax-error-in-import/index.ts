import { tags } from "./lib/tags";

export const team = tags.team;
