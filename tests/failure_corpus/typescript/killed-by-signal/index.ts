process.kill(process.pid, "SIGKILL");

export const zone = "a";
