function ports(first: number, count: number): number[] {
    return Array.from({ length: count }, (_, index) => first + index);
}

export const list = ports("8080", 3);
