"""An experiment: a run, how it is trained, evaluated and swept; the only room that wires parts together."""
