"""What is connected to what: units, links, builders, routes and the vendor's topology files."""
