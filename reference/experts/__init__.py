"""Expert load balancing: copies of experts, where they live, and what moves for them."""
