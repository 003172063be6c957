"""Files that describe a model (bundle.toml) and a deployment, read and checked."""
