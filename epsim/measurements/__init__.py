"""Public measurements shipped with epsim, one CSV file each."""
