TAGS = {
    "team": "platform",
    "stage": "dev"
    "owner": "operations",
}
