"""Is the bound a bound: exact evidence, the local reparametrization, the auxiliary distribution."""
