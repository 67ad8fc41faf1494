const zones: string[][] = [];
for (;;) {
    zones.push(new Array(1_000_000).fill("a"));
}
