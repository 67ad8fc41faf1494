if (!process.env.ZONE) {
    process.exit(3);
}

export const zone = process.env.ZONE;
