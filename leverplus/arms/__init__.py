"""Ways of choosing demonstrations: one class a way, which evaluation, bundles and services all call alike."""
