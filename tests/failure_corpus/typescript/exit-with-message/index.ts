if (!process.env.ZONE) {
    console.error("Set ZONE to the name of a zone");
    process.exit(1);
}

export const zone = process.env.ZONE;
