//! Access to Pulumi Cloud without a stored access token.
