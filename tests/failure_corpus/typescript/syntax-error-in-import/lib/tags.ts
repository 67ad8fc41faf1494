export const tags = {
    team: "platform",
    stage: "dev"
    owner: "operations",
};
