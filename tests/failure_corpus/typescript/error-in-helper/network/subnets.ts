export function subnets(range: string, count: number): string[] {
    return Array.from({ length: count }, (_, index) => subnet(range, index));
}

function subnet(range: string, index: number): string {
    if (index > 255) {
        throw new RangeError(`subnet ${index} is not in ${range}`);
    }
    return range.replace(/0\.0\/8$/, `${index}.0/24`);
}
