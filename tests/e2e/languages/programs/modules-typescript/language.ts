export const language: string = "typescript";
