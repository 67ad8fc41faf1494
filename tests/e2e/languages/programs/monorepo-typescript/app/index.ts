import { text } from "library";

export const library: string = text;
