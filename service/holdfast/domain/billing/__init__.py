"""Bills: phases, rates, provider rules, allocation and running cost."""
