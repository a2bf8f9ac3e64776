"""Hardware and software profiles shipped with epsim, one TOML file each."""
