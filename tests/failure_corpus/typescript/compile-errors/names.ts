export interface Labels {
    application: string;
    stage: string;
}

export function nameOf(labels: Labels): string {
    return labels.application + "-" + labels.stag;
}
